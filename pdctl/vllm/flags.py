"""Flags of `vllm serve` that pdctl sets itself, in every spelling, and how free arguments become an argv."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pdctl.vllm.releases import short_flags

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWNED: dict[str, str] = {
    "port": "pdctl chooses it from `ports`",
    "host": "pdctl sets it to the host's `address`",
    "uds": "pdctl serves on TCP: remove it",
    "model": "write `model`",
    "model-tag": "write `model`",
    "served-model-name": "write `served_model_name`",
    "tensor-parallel-size": "write `tp` (or `prefill.tp`, `decode.tp`)",
    "pipeline-parallel-size": "write `pp` (or `prefill.pp`, `decode.pp`)",
    "data-parallel-size": "write `dp` (or `prefill.dp`, `decode.dp`)",
    "data-parallel-rank": "pdctl chooses it",
    "data-parallel-start-rank": "pdctl chooses it",
    "data-parallel-size-local": "pdctl chooses it",
    "data-parallel-address": "pdctl sets it to the host's `address`",
    "data-parallel-rpc-port": "pdctl chooses it from `ports`",
    "data-parallel-backend": "pdctl chooses it",
    "data-parallel-external-lb": "pdctl chooses it",
    "data-parallel-hybrid-lb": "pdctl chooses it",
    "data-parallel-multi-port-external-lb": "pdctl chooses it",
    "nnodes": "pdctl chooses it from `hosts`",
    "node-rank": "pdctl chooses it",
    "master-addr": "pdctl sets it to the host's `address`",
    "master-port": "pdctl chooses it from `ports`",
    "headless": "pdctl chooses it",
    "prefill-context-parallel-size": "its GPUs are not in the plan: use `tp`, `pp` or `dp`",
    "kv-transfer-config": "write `connector: {name: ..., extra: {...}}`",
    "api-key": "it would show in the process list: write `proxy.api_key_env: NAME` for the front",
}


_APPENDED = ("middleware",)
"""Flags that are given once for each value (argparse's append): of a list after one flag vLLM would refuse all but the first."""


def normal_flag(written: str) -> str:
    """Return the long name with dashes: `--tensor_parallel_size`, `-tp`, `tp` -> `tensor-parallel-size`.

    What follows a dot is a field of vLLM's own config class and keeps its underscores: `-cc.cudagraph_mode`.
    """
    name, dot, field = written.strip().lstrip("-").split("=", 1)[0].partition(".")
    name = name.replace("_", "-")
    return f"{short_flags().get(name, name)}{dot}{field}"


def owned_by(written: str) -> str | None:
    """Return what to write instead of a flag that pdctl sets itself; None for a flag that is free.

    Dotted forms (`--kv-transfer-config.kv_role`) belong to their first part.
    """
    name = normal_flag(written)
    return _OWNED.get(name) or (_OWNED.get(name.split(".", 1)[0]) if "." in name else None)


def argv_of(args: Mapping[str, Any]) -> list[str]:
    """Turn free arguments into words: true -> `--flag`, false -> `--no-flag`, null -> left out, list -> its values, mapping -> JSON.

    `--no-flag` is vLLM's spelling for every boolean option (argparse's BooleanOptionalAction, vLLM 0.9.2 on).
    """
    words: list[str] = []
    for written, value in args.items():
        name = normal_flag(written)
        flag = f"-{name}" if re.match(r"O(?![a-z])", name) else f"--{name}"
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{name}")
        elif isinstance(value, list) and name in _APPENDED:
            for one in value:
                words += [flag, _word(one)]
        elif isinstance(value, list):
            words += [flag, *(_word(one) for one in value)]
        else:
            words += [flag, _word(value)]
    return words


def _word(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, (dict, list)) else str(value)
