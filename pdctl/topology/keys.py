"""Unknown keys: the nearest known one, and keys that people know from vLLM and other launchers."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from pdctl.topology.fields import all_keys, example_path, model_at, places_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from pdctl.topology.source import Path

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "tp": ("tensor_parallel", "tensor_parallel_size", "tensor_parallelism", "tp_size"),
    "dp": ("data_parallel", "data_parallel_size", "data_parallelism", "dp_size"),
    "pp": ("pipeline_parallel", "pipeline_parallel_size", "pipeline_parallelism", "pp_size"),
    "replicas": ("num_replicas", "count", "instances", "num_instances", "workers", "num_workers", "scale", "size"),
    "prefill": ("producer", "producers", "prefiller", "prefillers", "prefill_workers", "prefills", "p"),
    "decode": ("consumer", "consumers", "decoder", "decoders", "decode_workers", "decodes", "d"),
    "aggregated": ("agg", "plain", "baseline", "monolithic"),
    "connector": ("kv_connector", "kv_transfer", "transfer", "kv_transfer_config"),
    "extra": ("kv_connector_extra_config", "extra_config", "config", "options"),
    "model": ("model_path", "model_id", "model_tag", "checkpoint", "weights"),
    "served_model_name": ("model_name", "served_name", "served_model", "alias"),
    "layout": ("topology", "xpyd", "shape"),
    "env": ("environment", "envs", "env_vars", "environ"),
    "args": ("extra_args", "vllm_args", "engine_args", "arguments", "flags", "options"),
    "proxy": ("router", "gateway", "front", "frontend", "load_balancer"),
    "hosts": ("nodes", "machines", "servers", "node_list", "inventory", "host"),
    "placement": ("pins", "placements", "affinity"),
    "address": ("ip", "addr", "host_ip", "ip_address", "private_ip"),
    "host": ("hostname", "node", "server", "machine"),
    "gpus": ("num_gpus", "gpu", "gpu_count", "devices", "gpu_ids", "cuda_visible_devices", "n_gpus"),
    "bind": ("listen", "listen_address", "interface_address"),
    "interface": ("nic", "ifname", "network_interface", "iface"),
    "activate": ("venv", "conda", "conda_env", "virtualenv", "setup", "source"),
    "python": ("interpreter", "python_path", "executable", "vllm", "binary"),
    "identity_file": ("key", "key_file", "identity", "private_key", "ssh_key"),
    "jump": ("proxy_jump", "jump_host", "bastion"),
    "user": ("username", "login"),
    "workdir": ("work_dir", "working_dir", "dir", "directory", "state_dir"),
    "base": ("base_port", "start", "first", "from"),
    "kind": ("type", "backend"),
    "version": ("vllm_version", "engine_version"),
    "startup_timeout": ("timeout", "start_timeout", "ready_timeout", "start_period"),
    "api_key_env": ("api_key", "apikey", "token", "key_env", "api_token"),
    "gpu_memory": ("gpu_mem", "memory", "vram", "gpu_memory_gib"),
    "config_json": ("model_config", "config", "hf_config"),
    "max_size": ("max_bytes", "rotate_size"),
    "keep": ("max_files", "max_file", "backups", "rotate"),
    "max": ("max_restarts", "retries", "max_retries", "max_attempts"),
    "backoff": ("delay", "restart_delay"),
    "policy": ("restart_policy", "condition"),
    "name": ("cluster", "cluster_name", "project"),
    "instance": ("replica", "instance_name"),
    "share_gpus": ("gpu_sharing", "ranks_per_gpu"),
    "allow_idle_gpus": ("idle_gpus", "allow_idle"),
    "health": ("healthcheck", "health_check", "probe"),
    "logs": ("logging", "log"),
}
_MEANT: dict[str, tuple[str, ...]] = {}
for _key, _words in _SYNONYMS.items():
    for _word in _words:
        _MEANT[_word] = (*_MEANT.get(_word, ()), _key)

_TOP: dict[str, Path] = {
    **{
        f"{before}{role}{after}": (key, "replicas")
        for key, roles in {
            "prefill": ("prefill", "prefills", "producers", "prefillers"),
            "decode": ("decode", "decodes", "consumers", "decoders"),
        }.items()
        for role in roles
        for before, after in (("num_", ""), ("num_", "_workers"), ("", "_replicas"), ("", "_count"))
    },
    "prefill_tp": ("prefill", "tp"),
    "decode_tp": ("decode", "tp"),
    "prefill_args": ("prefill", "args"),
    "decode_args": ("decode", "args"),
    "proxy_port": ("proxy", "port"),
    "router_port": ("proxy", "port"),
    "base_port": ("ports", "base"),
    "port_base": ("ports", "base"),
}
"""Keys that name a key of a section in one word."""
_SAID: dict[str, str] = {
    "port": "write `proxy.port` for the clients' port, `ports.base` for the engines'",
    "replicas": "write `prefill.replicas` and `decode.replicas`, or `layout: 1P1D`",
    "api_key": "name the variable that holds the key: `proxy.api_key_env`",
    "kv_transfer_config": "pdctl makes it: write `connector: {name: ..., extra: {...}}`",
}
_KV_FIELDS = frozenset(
    {"kv_role", "kv_rank", "kv_parallel_size", "kv_buffer_size", "kv_ip", "kv_port", "kv_buffer_device", "engine_id"}
)
_VLLM_FLAGS = frozenset({
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "dtype", "quantization",
    "enforce_eager", "trust_remote_code", "enable_prefix_caching", "no_enable_prefix_caching", "block_size",
    "kv_cache_dtype", "seed", "enable_expert_parallel", "compilation_config", "speculative_config", "max_seq_len",
    "swap_space", "load_format", "tokenizer", "revision", "download_dir",
    "chat_template", "enable_chunked_prefill", "disable_log_requests",
    "all2all_backend", "attention_backend", "tool_call_parser", "reasoning_parser", "enable_auto_tool_choice",
})  # fmt: skip


def advise(path: Path, present: Collection[str]) -> tuple[str, Path | None]:
    """Return what to write instead of an unknown key, and the path that was meant if it is clear.

    `present`: the keys that stand beside it.
    """
    key = str(path[-1])
    word = key.lower().replace("-", "_").lstrip("_")
    model = model_at(path[:-1])
    known = list(model.model_fields) if model is not None else []
    meant = _MEANT.get(word, ())
    top = len(path) == 1
    same = next((name for name in (word, *meant) if name in known), None)
    if same is not None:
        return _same_level(same, path, present)
    if top and word in _TOP:
        return f"write it as `{example_path(_TOP[word])}`", _TOP[word]
    if top and word in _SAID:
        return _SAID[word], None
    same = _near(word, known, 0.75)
    if same is not None:
        return _same_level(same, path, present)
    if word in _KV_FIELDS:
        return "pdctl sets it; what else a connector needs goes into `connector.extra`", None
    if word in _VLLM_FLAGS:
        return f"a flag of vLLM belongs in `engine.args` (or `prefill.args`): {word.replace('_', '-')}", None
    return _elsewhere(word, meant, path, known, present)


def _same_level(same: str, path: Path, present: Collection[str]) -> tuple[str, Path]:
    fix = f"did you mean `{same}`?"
    if same in present:
        fix = f"`{same}` stands here already: remove one of the two"
    elif same == "api_key_env":
        fix = "did you mean `api_key_env`? It names the variable that holds the key"
    return fix, (*path[:-1], same)


def _elsewhere(
    word: str, meant: tuple[str, ...], path: Path, known: list[str], present: Collection[str]
) -> tuple[str, Path | None]:
    """Look for the key at other levels, then for a weaker likeness at this one."""
    names = list(dict.fromkeys(str(one[-1]) for one in all_keys()))
    name = next((one for one in (word, *meant) if one in names), None) or _near(word, names, 0.8)
    if name is not None:
        if name in _SAID and len(path) == 1:
            return f"did you mean `{name}`? If so, {_SAID[name]}", None
        every = places_of(name)
        under = [one for one in every if len(path) > 1 and one[0] == path[0]]
        places = [f"`{example_path(one)}`" for one in under or every]
        shown = ", ".join(places[:4]) + (", ..." if len(places) > 4 else "")
        return f"`{name}` belongs elsewhere: {shown}" if name == word else f"did you mean {shown}?", None
    weak = _near(word, known, 0.6)
    if weak is not None:
        return _same_level(weak, path, present)
    return f"known here: {', '.join(known)}", None


def _near(word: str, names: list[str], cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(word, names, n=1, cutoff=cutoff)), None)
