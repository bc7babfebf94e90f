"""Models whose layers keep a state beside the KV cache: Mamba, linear attention, hybrids of them with attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS = (
    "mamba_d_state",
    "ssm_cfg",
    "layers_block_type",
    "hybrid_override_pattern",
    "linear_num_key_heads",
    "ssm_state_size",
    "state_size",
)
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")


def has_state_layers(config: Mapping[str, Any] | None) -> bool:
    """Say whether a config.json describes such a model; False where nothing is known.

    vLLM runs them with its hybrid KV cache manager (HMA) only.
    """
    text = (config or {}).get("text_config")
    for part in (config or {}, text if isinstance(text, dict) else {}):
        kinds = part.get("layer_types") or ()
        if any(part.get(key) for key in _KEYS) or any(kind not in _ATTENTION for kind in kinds):
            return True
    return False
