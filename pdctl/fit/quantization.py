"""Bytes of a quantised weight, with its scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Quantization:
    """How linear layers are stored; embeddings, norms and the output matrix keep the model's dtype."""

    name: str
    bytes_per_weight: float
    only_experts: bool = False
    """True where attention stays unquantised (gpt-oss's mxfp4)."""


ONLINE = {"fp8": Quantization("fp8", 1.0)}
"""--quantization values that shrink the weights of an unquantised model while they are loaded."""


def read_quantization(config: Mapping[str, Any] | None) -> Quantization | None:
    """Return what a quantization_config says; None where there is none or where it does not say how many bits."""
    if not isinstance(config, dict) or not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    if method in ("fp8", "fbgemm_fp8"):
        return Quantization("fp8", 1.0)
    if method == "mxfp4":
        return Quantization("mxfp4", 4.25 / 8, only_experts=True)  # 4 bits and an 8 bit scale for 32 values
    bits = _bits(config, method)
    if bits is None:
        return None
    group = config.get("group_size") or _group(config)
    scale_bits = 16 / group if isinstance(group, int) and group > 0 and bits < 8 else 0.0
    return Quantization(method or f"{bits} bit", (bits + scale_bits) / 8)


def _bits(config: Mapping[str, Any], method: str) -> float | None:
    if config.get("load_in_4bit"):
        return 4.5
    if config.get("load_in_8bit"):
        return 8
    for key in ("bits", "w_bit", "num_bits"):
        if isinstance(config.get(key), int):
            return float(config[key])
    weights = _first_group(config).get("weights")
    if isinstance(weights, dict) and isinstance(weights.get("num_bits"), int):
        return float(weights["num_bits"])
    algorithm = str(config.get("quant_algo", "")).upper()
    if "FP4" in algorithm or "nvfp4" in method:
        return 4.5
    return 8.0 if "FP8" in algorithm else None


def _group(config: Mapping[str, Any]) -> int | None:
    weights = _first_group(config).get("weights")
    size = weights.get("group_size") if isinstance(weights, dict) else None
    return size if isinstance(size, int) else None


def _first_group(config: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = config.get("config_groups")
    first: object = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    return first if isinstance(first, dict) else {}
