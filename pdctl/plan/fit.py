"""Whether each role's replicas fit their GPUs, from the file, the facts and the model's config.json."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.fit.architecture import Architecture, NotModelled
from pdctl.fit.estimate import GIB, Fit, Load, estimate
from pdctl.fit.kv_cache import LINKS_BYTES_PER_S, crossing_bytes
from pdctl.fit.quantization import ONLINE
from pdctl.plan.engine import UTILIZATION
from pdctl.vllm.releases import release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.connectors.base import Ask, Connector
    from pdctl.errors import Problem
    from pdctl.plan.facts import Facts
    from pdctl.plan.shapes import RoleShape
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import SourceMap

_DTYPE_BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_FACTORS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BIG_GPU_BYTES = 70 * GIB
"""From here on vLLM's server takes 8192 tokens a step by default, else 2048 (0.22.1, engine/arg_utils.py)."""


@dataclass(frozen=True)
class FitReport:
    """What `plan` shows."""

    by_role: Mapping[str, Fit]
    """Key in the file (`prefill`, `decode`, `aggregated`) -> one replica."""
    crossing: Mapping[str, Any] | None
    """KV between prefill and decode for 1,000 prompt tokens."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "roles": {key: fit.to_dict() for key, fit in self.by_role.items()},
            "crossing": self.crossing,
            "notes": list(self.notes),
        }


def fit_report(
    topology: Topology,
    roles: Sequence[RoleShape],
    hosts: Sequence[Host],
    facts: Facts,
    connector: Connector | None,
    ask: Ask,
    source: SourceMap,
) -> tuple[FitReport | None, list[Problem]]:
    """Return the report (None without a config.json, and for simulated engines) and what cannot fit."""
    if facts.model_config is None or topology.engine.kind == "sim":
        return None, []
    try:
        model = Architecture.from_config(facts.model_config)
    except NotModelled as error:
        return FitReport({}, None, (f"no memory figures: {error}",)), []
    problems: list[Problem] = []
    fits: dict[str, Fit] = {}
    loads: dict[str, Load] = {}
    for role in roles:
        loads[role.key] = _load(topology, role, hosts, facts, connector, ask, model)
        undivided = _division(model, role, source)
        problems += undivided
        if not undivided:
            fits[role.key] = estimate(model, loads[role.key])
            problems += _memory(role, fits[role.key], loads[role.key], source)
    pd = connector is not None and connector.disaggregates and {"prefill", "decode"} <= set(fits)
    crossing = _crossing(model, loads["prefill"].kv_bytes) if pd else None
    return FitReport(fits, crossing, tuple(_notes(model, roles, fits))), problems


def _division(model: Architecture, role: RoleShape, source: SourceMap) -> list[Problem]:
    """vLLM 0.22.1, config/model.py (verify_with_parallel_config) and model_executor/models/llama.py: heads, then KV heads."""
    tp, pp = role.shape.tp, role.shape.pp
    path = source.written((role.key, "tp"), ("tp",))
    fitting = [one for one in (1, 2, 4, 8, 16, 32) if model.heads % one == 0]
    fix = f"use {', '.join(map(str, fitting))}"
    if model.heads % tp:
        return [source.problem(path, f"tp {tp} does not divide the model's {model.heads} attention heads", fix)]
    if model.latent is None and max(tp, model.kv_heads) % min(tp, model.kv_heads):
        what = f"tp {tp} and the model's {model.kv_heads} KV heads do not divide each other"
        return [source.problem(path, what, fix)]
    if pp > model.layers:
        what = f"pp {pp} is more than the model's {model.layers} layers"
        return [source.problem(source.written((role.key, "pp"), ("pp",)), what, f"use {model.layers} or less")]
    return []


def _memory(role: RoleShape, fit: Fit, load: Load, source: SourceMap) -> list[Problem]:
    shape = role.shape
    if fit.kv_gib is not None and fit.kv_gib <= 0 and fit.gpu_gib is not None:
        room = fit.gpu_gib * fit.utilization
        what = (
            f"each {role.key} replica holds the whole model: {fit.weight_gib:.1f} GiB of weights and about {fit.reserve_gib:.1f} GiB of "
            f"activations on each GPU at tp {shape.tp}, but {fit.gpu_gib:.1f} GiB x {fit.utilization:g} = {room:.1f} GiB"
        )
        fix = f"use a larger {role.key}.tp, a quantised model, or larger GPUs"
        return [source.problem(source.written((role.key, "tp"), ("tp",), (role.key,), ("layout",)), what, fix)]
    if fit.tokens is not None and load.max_model_len and fit.tokens < load.max_model_len * shape.dp:
        one = fit.tokens // shape.dp
        what = f"the KV cache of {'a DP rank of ' if shape.dp > 1 else ''}a {role.key} replica holds about {one} tokens, max-model-len asks for {load.max_model_len}"
        path = source.written(
            (role.key, "args", "max-model-len"), ("engine", "args", "max-model-len"), (role.key,), ("layout",)
        )
        return [source.problem(path, what, f"set max-model-len to {one} or less, or use a larger {role.key}.tp")]
    return []


def _load(
    topology: Topology, role: RoleShape, hosts: Sequence[Host], facts: Facts, connector: Connector | None, ask: Ask, model: Architecture
) -> Load:  # fmt: skip
    args = role.args
    dtype = _DTYPE_BYTES.get(str(args.get("dtype", "")), model.dtype_bytes)
    online = ONLINE.get(str(args.get("quantization", "")))
    gpu = _gpu_bytes(role, hosts, facts) if topology.engine.device == "gpu" else None
    flags = release(ask.version).flags
    default = flags["gpu-memory-utilization"].default if "gpu-memory-utilization" in flags else None
    if topology.share_gpus > 1 or default is None:
        default = round(UTILIZATION / topology.share_gpus, 2)  # what engine_argv writes
    utilization = args.get("gpu-memory-utilization", default)
    return Load(
        tp=role.shape.tp,
        pp=role.shape.pp,
        dp=role.shape.dp,
        dtype_bytes=online.bytes_per_weight if online and model.quantization is None else dtype,
        kv_bytes=1.0 if "fp8" in str(args.get("kv-cache-dtype", "")) else dtype,
        max_model_len=_whole(args.get("max-model-len")),
        block_size=_whole(args.get("block-size")) or (16 if topology.engine.device == "gpu" else 128),
        batched_tokens=_whole(args.get("max-num-batched-tokens")) or (8192 if (gpu or 0) >= _BIG_GPU_BYTES else 2048),
        hybrid=_hybrid(role, connector, ask),
        gpu_bytes=gpu,
        utilization=float(utilization) if _is_number(utilization) else UTILIZATION,
        kv_cache_bytes=_given_space(topology, role),
        blocks_override=_whole(args.get("num-gpu-blocks-override")),
        weight_file_bytes=facts.weight_bytes if online is None else None,
    )


def _given_space(topology: Topology, role: RoleShape) -> float | None:
    """Return the KV space that is given instead of measured: --kv-cache-memory-bytes, or a CPU engine's variable."""
    given = _whole(role.args.get("kv-cache-memory-bytes"))
    if given is not None:
        return float(given)
    space = role.env.get("VLLM_CPU_KVCACHE_SPACE") if topology.engine.device == "cpu" else None
    return float(space) * GIB if space is not None and _is_number(space) else None


def _gpu_bytes(role: RoleShape, hosts: Sequence[Host], facts: Facts) -> float | None:
    """Return the memory of the smallest GPU that the role may get; None if one is unknown."""
    smallest = []
    for host in hosts:
        if role.hosts and host.name not in role.hosts:
            continue
        if host.gpu_memory is not None:
            smallest.append(float(host.gpu_memory))
            continue
        seen = facts.host(host.name).gpus
        if not seen or not all(gpu.memory_mib for gpu in seen):
            return None
        wanted = {str(one) for one in host.gpus} if isinstance(host.gpus, list) else None
        smallest.append(
            min(gpu.memory_mib for gpu in seen if wanted is None or {str(gpu.index), gpu.uuid} & wanted or not wanted)
            * 2.0**20
        )
    return min(smallest, default=None)


def _hybrid(role: RoleShape, connector: Connector | None, ask: Ask) -> bool:
    """Say whether vLLM keeps only the window of sliding layers: any connector turned that off up to 0.21, later one without HMA."""
    if role.args.get("disable-hybrid-kv-cache-manager") is True:
        return False
    if connector is None or role.role == "aggregated":
        return True
    known = release(ask.version).connectors.get(connector.class_name(ask.version))
    return ask.version >= (0, 22, 0) and known is not None and known.supports_hma


def _crossing(model: Architecture, kv_bytes: float) -> dict[str, Any]:
    moved = crossing_bytes(model, kv_bytes)
    return {
        "tokens": 1000,
        "bytes": int(moved),
        "seconds": {link: round(moved / rate, 6) for link, rate in LINKS_BYTES_PER_S.items()},
    }


def _notes(model: Architecture, roles: Sequence[RoleShape], fits: Mapping[str, Fit]) -> list[str]:
    notes = []
    replicas = sum(role.shape.replicas for role in roles)
    if replicas > 1 and fits:
        whole = sum(
            fits[role.key].weight_gib * role.shape.world * role.shape.replicas for role in roles if role.key in fits
        )
        notes.append(
            f"each P or D replica holds the whole model: {replicas} replicas, about {whole:.1f} GiB of weights in all"
        )
    if model.only_text:
        notes.append("weights of vision or audio towers are not counted")
    return notes


def _whole(value: Any) -> int | None:
    """Read 8192, "8k" or "8K" as vLLM does (0.22.1, engine/arg_utils.py, human_readable_int); None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    match = _SIZE.fullmatch(str(value).strip())
    return int(float(match[1]) * _FACTORS[match[2]]) if match else None


def _is_number(value: Any) -> bool:
    try:
        return float(value) > 0
    except (TypeError, ValueError):
        return False
