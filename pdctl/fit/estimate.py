"""One role's replicas on their GPUs: what the weights take, what is left for KV, how many tokens and requests that is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pdctl.fit.kv_cache import bytes_per_token, request_bytes
from pdctl.fit.weights import gpu_bytes

if TYPE_CHECKING:
    from pdctl.fit.architecture import Architecture

GIB = 2.0**30
_CONTEXT_BYTES = 0.75 * GIB
"""CUDA context, NCCL buffers and what the allocator does not give back."""
_SAMPLER_ROWS = 256
"""vLLM's profile run samples for this many requests at once where max-num-seqs says nothing else."""


@dataclass(frozen=True)
class Load:
    """How one role is run."""

    tp: int
    pp: int
    dp: int
    dtype_bytes: float
    kv_bytes: float
    """Bytes of one KV value."""
    max_model_len: int | None
    block_size: int
    batched_tokens: int
    """Tokens of one forward step (--max-num-batched-tokens)."""
    hybrid: bool
    """Whether sliding layers keep their window only."""
    gpu_bytes: float | None
    """Memory of the smallest GPU; None if not known."""
    utilization: float
    kv_cache_bytes: float | None = None
    """--kv-cache-memory-bytes, or a CPU engine's space: nothing is measured then."""
    blocks_override: int | None = None
    weight_file_bytes: float | None = None
    """Size of the model's weight files, which beats the count of parameters."""


@dataclass(frozen=True)
class Fit:
    """What one role's replica takes; sizes on its fullest GPU."""

    weight_gib: float
    reserve_gib: float
    """Taken for activations, sampler and context: an estimate."""
    gpu_gib: float | None
    utilization: float
    kv_gib: float | None
    """Left for KV; None if the GPU's memory is not known. Negative: the weights alone are too much."""
    kv_bytes_per_token: float
    tokens: int | None
    """KV tokens of a whole replica (all its DP ranks)."""
    max_model_len: int | None
    concurrency: float | None
    """Requests of max_model_len at once in a replica."""

    def to_dict(self) -> dict[str, Any]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def estimate(model: Architecture, load: Load) -> Fit:
    """Return what a replica takes. Whether that is possible is for the caller to say."""
    weights = gpu_bytes(model, load.dtype_bytes, tp=load.tp, pp=load.pp, dp=load.dp)
    if load.weight_file_bytes is not None:
        whole = gpu_bytes(model, load.dtype_bytes, tp=1, pp=1, dp=1)
        weights *= load.weight_file_bytes / whole
    reserve = _reserve(model, load)
    kv = _kv_bytes(load, weights, reserve)
    per_token = bytes_per_token(model, load.kv_bytes, tp=load.tp, pp=load.pp)
    length = load.max_model_len or model.max_positions
    tokens = _tokens(model, load, kv, per_token, length)
    return Fit(
        weight_gib=weights / GIB,
        reserve_gib=reserve / GIB,
        gpu_gib=None if load.gpu_bytes is None else load.gpu_bytes / GIB,
        utilization=load.utilization,
        kv_gib=None if kv is None else kv / GIB,
        kv_bytes_per_token=per_token,
        tokens=None if tokens is None else tokens * load.dp,
        max_model_len=length,
        concurrency=None if tokens is None or not length else tokens * load.dp / length,
    )


def _kv_bytes(load: Load, weights: float, reserve: float) -> float | None:
    if load.kv_cache_bytes is not None:
        return load.kv_cache_bytes
    if load.gpu_bytes is None:
        return None
    return load.gpu_bytes * load.utilization - weights - reserve


def _tokens(model: Architecture, load: Load, kv: float | None, per_token: float, length: int | None) -> int | None:
    """Whole blocks that fit, in tokens. With sliding layers under the hybrid manager: as vLLM counts, requests times their length."""
    if load.blocks_override is not None:
        return load.blocks_override * load.block_size
    if kv is None:
        return None
    if kv <= 0:
        return 0
    if load.hybrid and model.sliding_layers and length:
        one = request_bytes(model, load.kv_bytes, length, tp=load.tp, pp=load.pp, hybrid=True)
        return int(kv / one * length)
    return int(kv // (per_token * load.block_size)) * load.block_size


def _reserve(model: Architecture, load: Load) -> float:
    """Estimate what vLLM's profile run finds in use beside weights: one step's activations, logits of the sampler, the context."""
    widest = max(model.intermediate, model.experts.intermediate if model.experts else 0)
    step = load.batched_tokens * (4 * model.hidden + 3 * widest / load.tp) * 2
    logits = _SAMPLER_ROWS * model.vocab * 4 * 2
    return _CONTEXT_BYTES + step + logits
