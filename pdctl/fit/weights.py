"""Parameters and their bytes on one GPU, as vLLM divides them.

Column- and row-parallel matrices are divided by tp, KV heads at most into single heads, latent down-projections not at all
(vLLM 0.22.1, model_executor/layers/linear.py, models/deepseek_v2.py); experts over tp x dp, with expert parallelism or without
(model_executor/layers/fused_moe/config.py); layers over pp, the larger share counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.fit.architecture import Architecture, Latent


@dataclass(frozen=True)
class _Layer:
    """Parameters of one layer by how they are divided."""

    attention: float
    """Divided by tp."""
    kv: float
    """K and V projections: divided by min(tp, KV heads)."""
    whole: float
    """On every rank: norms, routers, latent down-projections."""
    mlp: float
    """Dense MLP or shared experts: divided by tp."""
    experts: float
    """Divided by tp x dp."""


def total_parameters(model: Architecture) -> float:
    """Return the number of parameters; within 2 percent of the published ones for the models in the tests."""
    layers = sum(count * _sum(layer) for count, layer in _layers(model))
    return layers + model.vocab * model.hidden * (1 if model.tied else 2) + model.hidden


def total_bytes(model: Architecture, dtype_bytes: float) -> float:
    """Return the bytes of all weights, as one GPU would hold them."""
    return gpu_bytes(model, dtype_bytes, tp=1, pp=1, dp=1)


def gpu_bytes(model: Architecture, dtype_bytes: float, *, tp: int, pp: int, dp: int) -> float:
    """Return the weight bytes on the fullest GPU of a replica."""
    share = ceil(model.layers / pp) / model.layers
    embeddings = model.vocab * model.hidden / tp * dtype_bytes
    ends = embeddings * (1 if model.tied or pp > 1 else 2)
    layers = sum(count * _layer_bytes(model, layer, dtype_bytes, tp, dp) for count, layer in _layers(model))
    return layers * share + ends + model.hidden * dtype_bytes


def _layers(model: Architecture) -> list[tuple[int, _Layer]]:
    """Return (how many, layer) for dense layers and for those with experts."""
    if model.experts is None:
        return [(model.layers, _layer(model, sparse=False))]
    sparse = model.experts.layers
    return [(model.layers - sparse, _layer(model, sparse=False)), (sparse, _layer(model, sparse=True))]


def _layer(model: Architecture, *, sparse: bool) -> _Layer:
    attention, kv, whole = _latent_parts(model, model.latent) if model.latent else _head_parts(model)
    matrices = 3 if model.gated else 2
    whole += 2 * model.hidden
    if not sparse or model.experts is None:
        return _Layer(attention, kv, whole, matrices * model.hidden * model.intermediate, 0)
    experts = model.experts
    whole += model.hidden * experts.count
    shared = matrices * model.hidden * experts.shared_intermediate
    return _Layer(attention, kv, whole, shared, experts.count * matrices * model.hidden * experts.intermediate)


def _head_parts(model: Architecture) -> tuple[float, float, float]:
    queries = model.hidden * model.heads * model.head_dim
    return 2.0 * queries, 2.0 * model.hidden * model.kv_heads * model.head_dim, 0.0


def _latent_parts(model: Architecture, latent: Latent) -> tuple[float, float, float]:
    q_out = model.heads * (latent.nope_dim + latent.rope_dim)
    q = latent.q_rank * q_out if latent.q_rank else model.hidden * q_out
    up = latent.kv_rank * model.heads * (latent.nope_dim + latent.v_dim)
    out = model.heads * latent.v_dim * model.hidden
    down = model.hidden * (latent.kv_rank + latent.rope_dim) + (model.hidden * latent.q_rank if latent.q_rank else 0)
    return float(q + up + out), 0.0, float(down)


def _sum(layer: _Layer) -> float:
    return layer.attention + layer.kv + layer.whole + layer.mlp + layer.experts


def _layer_bytes(model: Architecture, layer: _Layer, dtype_bytes: float, tp: int, dp: int) -> float:
    quantised = model.quantization
    experts = quantised.bytes_per_weight if quantised else dtype_bytes
    linear = dtype_bytes if quantised is None or quantised.only_experts else quantised.bytes_per_weight
    return (
        (layer.attention + layer.mlp) / tp * linear
        + layer.kv / min(tp, model.kv_heads) * linear
        + layer.whole * dtype_bytes
        + layer.experts / (tp * dp) * experts
    )
