"""Unknown keys: the nearest known one, and keys that people know from vLLM and other launchers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_SYNONYMS: dict[str, str] = {
    "tensor_parallel": "tp", "tensor_parallel_size": "tp", "tensor-parallel-size": "tp", "tp_size": "tp",
    "data_parallel": "dp", "data_parallel_size": "dp", "data-parallel-size": "dp", "dp_size": "dp",
    "pipeline_parallel": "pp", "pipeline_parallel_size": "pp", "pipeline-parallel-size": "pp", "pp_size": "pp",
    "num_replicas": "replicas", "count": "replicas", "instances": "replicas", "workers": "replicas",
    "producer": "prefill", "producers": "prefill", "prefiller": "prefill", "prefill_workers": "prefill", "p": "prefill",
    "consumer": "decode", "consumers": "decode", "decoder": "decode", "decode_workers": "decode", "d": "decode",
    "kv_connector": "connector", "kv_transfer_config": "connector", "model_path": "model", "model_name": "served_model_name",
    "served-model-name": "served_model_name", "environment": "env", "envs": "env", "extra_args": "args", "vllm_args": "args",
    "arguments": "args", "router": "proxy", "nodes": "hosts", "machines": "hosts", "ip": "address", "addr": "address",
    "hostname": "host", "num_gpus": "gpus", "gpu": "gpus", "gpu_count": "gpus", "listen": "bind", "kv_connector_extra_config": "extra",
    "venv": "activate", "conda": "activate", "interpreter": "python", "base_port": "base", "type": "kind", "backend": "kind",
}  # fmt: skip
_ELSEWHERE: dict[str, str] = {
    "port": "proxy.port (clients) or ports.base (engines)", "host": "proxy.host, or hosts: [...]", "python": "engine.python",
    "activate": "engine.activate", "version": "engine.version", "args": "engine.args", "env": "engine.env", "kind": "engine.kind",
    "replicas": "prefill.replicas and decode.replicas, or layout", "extra": "connector: {name: ..., extra: {...}}", "device": "engine.device",
    "max_size": "logs.max_size", "timeout": "health.startup_timeout", "startup_timeout": "health.startup_timeout", "address": "hosts[].address",
    "interface": "hosts[].interface", "ssh": "hosts[].ssh", "api_key_env": "proxy.api_key_env", "bind": "proxy.bind", "policy": "restart.policy",
}  # fmt: skip
"""Where a key belongs that was written at the top level."""


def unknown_key_fix(key: str, known: Iterable[str], *, at_top: bool, all_known: Mapping[str, str]) -> str:
    """Return what to write instead of an unknown key.

    `all_known` maps every key of the schema to the first place where it is known, for a key that is right but stands wrong.
    """
    names = list(known)
    same = _SYNONYMS.get(key.lower()) or _SYNONYMS.get(key.lower().replace("-", "_"))
    if same in names:
        return f"did you mean `{same}`?"
    near = difflib.get_close_matches(key.lower().replace("-", "_"), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    if at_top and key in _ELSEWHERE:
        return f"it belongs under {_ELSEWHERE[key]}"
    if key in all_known:
        return f"it belongs in {all_known[key]}"
    if same:
        return f"did you mean `{same}`, in {all_known.get(same, 'the top level')}?"
    return f"known here: {', '.join(names)}"
