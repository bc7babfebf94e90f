"""Bytes of KV cache: for a token on a GPU, for a whole request, and between prefill and decode."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.fit.architecture import Architecture

LINKS_BYTES_PER_S = {"25 Gbit/s": 25e9 / 8, "100 Gbit/s": 100e9 / 8, "400 Gbit/s": 400e9 / 8, "NVLink 4": 450e9}
"""Line rates. NVLink 4 (H100, H200): 18 links of 25 GB/s in each direction. Measured with Nixl on one H200: 24 to 39 GB/s."""


def bytes_per_token(model: Architecture, kv_bytes: float, *, tp: int, pp: int) -> float:
    """Return what one token takes on one GPU, all layers of the fullest stage.

    `kv_bytes`: of one value, 2 for bfloat16, 1 for fp8. A latent cache lies whole on every TP rank; KV heads are divided down to one.
    """
    return layer_bytes_per_token(model, kv_bytes, tp=tp) * ceil(model.layers / pp)


def layer_bytes_per_token(model: Architecture, kv_bytes: float, *, tp: int) -> float:
    """Return what one token takes in one layer on one GPU."""
    if model.latent is not None:
        return (model.latent.kv_rank + model.latent.rope_dim) * kv_bytes
    return 2 * max(model.kv_heads // tp, 1) * model.head_dim * kv_bytes


def request_bytes(model: Architecture, kv_bytes: float, length: int, *, tp: int, pp: int, hybrid: bool) -> float:
    """Return what a request of `length` tokens takes on one GPU.

    `hybrid`: with vLLM's hybrid KV cache manager sliding layers keep their window only; most KV connectors turn it off.
    """
    one = layer_bytes_per_token(model, kv_bytes, tp=tp)
    sliding = model.sliding_layers if hybrid and model.window else 0
    kept = min(length, model.window or length)
    share = ceil(model.layers / pp) / model.layers
    return one * ((model.layers - sliding) * length + sliding * kept) * share


def crossing_bytes(model: Architecture, kv_bytes: float, tokens: int = 1000) -> float:
    """Return the bytes that go from prefill to decode for `tokens` prompt tokens, each value once (all heads, all layers)."""
    return layer_bytes_per_token(model, kv_bytes, tp=1) * model.layers * tokens
