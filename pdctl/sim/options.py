"""The simulated engine's command line: vLLM's flags, and a few of its own that start with `--sim-`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pdctl.vllm.releases import newest_known
from pdctl.vllm.version import Version, format_version, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAIL_HOWS = ("exit1", "exit0", "kill", "kill-worker", "hang", "oom")
PHASES = ("config", "load", "profile", "connector", "serve")
_FIELDS = {
    "kv_connector", "engine_id", "kv_buffer_device", "kv_role", "kv_port", "kv_connector_extra_config", "kv_connector_module_path",
    "enable_permute_local_kv", "kv_load_failure_policy",
}  # fmt: skip
_OLD_FIELDS = {"kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip"}
"""Gone in vLLM 0.32 (config/kv_transfer.py), where unknown fields are fatal since 0.17."""
_ROLES = ("kv_producer", "kv_consumer", "kv_both")


@dataclass(frozen=True)
class Options:
    """What one simulated engine is to be."""

    model: str
    served_name: str
    host: str
    port: int
    tp: int
    pp: int
    dp: int
    max_model_len: int
    kv_config: dict[str, Any] | None
    version: Version
    startup_s: float
    prefill_tokens_per_s: float
    decode_s: float
    fail: tuple[str, str] | None
    """(phase, how) of a start that fails."""
    tree: bool
    ignore_kv: bool
    damage_kv: bool
    drop_kv: bool
    drop_first: int
    vocabulary: int
    seed: int
    kv_bytes_per_token: int
    given: dict[str, Any]
    """All flags as given, for the log."""

    @property
    def role(self) -> str | None:
        return self.kv_config.get("kv_role") if self.kv_config else None

    @property
    def extra(self) -> dict[str, Any]:
        return dict((self.kv_config or {}).get("kv_connector_extra_config") or {})


def parse_options(argv: Sequence[str]) -> Options:
    """Parse a command line. Exits with 2 for what vLLM would refuse too, in vLLM's words."""
    parser = _parser()
    given, rest = parser.parse_known_args([_dashes(word) for word in argv])
    others = _others(rest)
    version = _version(parser, given.sim_vllm_version)
    fail = _fail(parser, given.sim_fail)
    return Options(
        model=given.model,
        served_name=given.served_model_name or given.model.rstrip("/").rsplit("/", 1)[-1],
        host=given.host,
        port=given.port,
        tp=given.tensor_parallel_size,
        pp=given.pipeline_parallel_size,
        dp=given.data_parallel_size,
        max_model_len=given.max_model_len,
        kv_config=_kv_config(parser, given.kv_transfer_config, version),
        version=version,
        startup_s=given.sim_startup,
        prefill_tokens_per_s=given.sim_prefill_tps,
        decode_s=given.sim_decode_ms / 1000,
        fail=fail,
        tree=given.sim_tree,
        ignore_kv=given.sim_ignore_kv,
        damage_kv=given.sim_damage_kv,
        drop_kv=given.sim_drop_kv,
        drop_first=given.sim_drop_first,
        vocabulary=given.sim_vocab,
        seed=given.sim_seed,
        kv_bytes_per_token=given.sim_kv_bytes_per_token,
        given={**{key: value for key, value in vars(given).items() if value != parser.get_default(key)}, **others},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pdctl sim", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model", default="sim/tiny", help="name only: nothing is loaded")
    add("--served-model-name", default="")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--pipeline-parallel-size", "-pp", type=int, default=1)
    add("--data-parallel-size", "-dp", type=int, default=1)
    add("--max-model-len", type=int, default=8192)
    add("--kv-transfer-config", metavar="JSON", help="as for vLLM: NixlConnector or P2pNcclConnector")
    add(
        "--sim-vllm-version", default=format_version(newest_known()), help="whose rules to follow (default %(default)s)"
    )
    add(
        "--sim-startup",
        type=float,
        default=0.2,
        metavar="SECONDS",
        help="how long the start takes (default %(default)s)",
    )
    add("--sim-prefill-tps", type=float, default=1e6, metavar="N", help="prompt tokens per second")
    add("--sim-decode-ms", type=float, default=1.0, metavar="MS", help="time of one output token")
    add("--sim-fail", metavar="PHASE:HOW", help=f"fail the start: {', '.join(PHASES)} : {', '.join(_FAIL_HOWS)}")
    add("--sim-tree", action="store_true", help="have child processes as vLLM has: an engine core and workers")
    add("--sim-ignore-kv", action="store_true", help="consumer: take the KV and compute the prompt again all the same")
    add("--sim-damage-kv", action="store_true", help="consumer: damage the KV on arrival")
    add("--sim-drop-kv", action="store_true", help="producer: never hand over the KV")
    add(
        "--sim-drop-first",
        type=int,
        default=0,
        metavar="N",
        help="Nixl producer: hand over no KV for the first N requests",
    )
    add("--sim-vocab", type=int, default=1024, metavar="N")
    add("--sim-seed", type=int, default=0, metavar="N", help="weights; the same for all instances of a cluster")
    add("--sim-kv-bytes-per-token", type=int, default=131072, metavar="N")
    return parser


def _dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _others(rest: Sequence[str]) -> dict[str, Any]:
    """Take any other flag of vLLM's: it changes nothing here."""
    found: dict[str, Any] = {}
    name = ""
    for word in rest:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name, _, value = word.lstrip("-").partition("=")
            found[name] = value or True
        elif name:
            found[name] = word if found[name] is True else f"{found[name]} {word}"
    return found


def _version(parser: argparse.ArgumentParser, text: str) -> Version:
    try:
        return parse_version(text)
    except ValueError as error:
        parser.error(f"--sim-vllm-version: {error}")


def _fail(parser: argparse.ArgumentParser, text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    phase, _, how = text.partition(":")
    if phase not in PHASES or how not in _FAIL_HOWS:
        parser.error(
            f"--sim-fail {text}: write PHASE:HOW with PHASE one of {', '.join(PHASES)} and HOW one of {', '.join(_FAIL_HOWS)}"
        )
    return phase, how


def _kv_config(parser: argparse.ArgumentParser, text: str | None, version: Version) -> dict[str, Any] | None:
    """Check a KV config as KVTransferConfig of that version would (config/kv_transfer.py)."""
    if text is None:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        _refuse(parser, f"Value {text} cannot be converted to <function loads>: {error}")
    if not isinstance(config, dict):
        _refuse(parser, f"Value {text} cannot be converted to a KVTransferConfig")
    known = _FIELDS if version >= (0, 32, 0) else _FIELDS | _OLD_FIELDS
    lines = [
        f"{key}\n  Unexpected keyword argument [type=unexpected_keyword_argument, input_value={config[key]!r}, input_type={type(config[key]).__name__}]"
        for key in config
        if key not in known and version >= (0, 17, 0)
    ]
    role = config.get("kv_role")
    if role is not None and role not in _ROLES:
        lines.append(
            f"kv_role\n  Input should be 'kv_producer', 'kv_consumer' or 'kv_both' [type=literal_error, input_value={role!r}, input_type=str]"
        )
    if lines:
        _refuse(
            parser,
            f"{len(lines)} validation error{'s' if len(lines) > 1 else ''} for KVTransferConfig\n" + "\n".join(lines),
        )
    if config.get("kv_connector") and role is None:
        print(
            f"ValueError: Please specify kv_role when kv_connector is set, supported roles are {list(_ROLES)}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    return config if config.get("kv_connector") else None


def _refuse(parser: argparse.ArgumentParser, text: str) -> NoReturn:
    parser.error(f"argument --kv-transfer-config: {text}")
