"""A model's sizes as its config.json gives them. What cannot be read for sure is a reason, never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.fit.quantization import Quantization, read_quantization

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNGATED = ("gpt2", "opt", "gpt_neox", "gptj", "bloom", "falcon", "phi", "starcoder2", "mpt", "gpt_bigcode")
"""Model types whose MLP has two matrices, not three."""
_STATE_KEYS = (
    "mamba_d_state",
    "ssm_cfg",
    "layers_block_type",
    "hybrid_override_pattern",
    "linear_num_key_heads",
    "ssm_state_size",
    "state_size",
)
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}


class NotModelled(ValueError):
    """The sizes cannot be told; `str()` says why."""


@dataclass(frozen=True)
class Experts:
    """Mixture of experts."""

    count: int
    intermediate: int
    shared_intermediate: int
    """Width of all shared experts together; 0 without."""
    layers: int
    """Layers that have experts; the others have a dense MLP."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek): one vector for each token and layer instead of heads."""

    kv_rank: int
    rope_dim: int
    q_rank: int | None
    nope_dim: int
    v_dim: int


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder; parameters of vision or audio towers are not counted."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    gated: bool
    tied: bool
    """Whether the output matrix is the embedding."""
    experts: Experts | None
    latent: Latent | None
    window: int | None
    """Tokens that a sliding layer looks back."""
    sliding_layers: int
    max_positions: int | None
    """The model's own limit of a request's length in tokens."""
    dtype_bytes: float
    quantization: Quantization | None
    only_text: bool
    """True where the model has other towers, which are not counted."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Read a config.json. Raises NotModelled."""
        text = config.get("text_config") or config.get("llm_config") or {}
        inner = {**config, **text} if isinstance(text, dict) else dict(config)
        if any(inner.get(key) for key in _STATE_KEYS):
            raise NotModelled("layers with a state (Mamba, linear attention) are not modelled")
        kinds = inner.get("layer_types") or []
        other = sorted({kind for kind in kinds if kind not in _ATTENTION})
        if other:
            raise NotModelled(f"layers of kind {', '.join(map(str, other))} are not modelled")
        layers = _whole(inner, "num_hidden_layers", "n_layer", "num_layers")
        hidden = _whole(inner, "hidden_size", "n_embd", "d_model")
        heads = _whole(inner, "num_attention_heads", "n_head", "num_heads")
        intermediate = _optional(inner, "intermediate_size", "ffn_hidden_size", "n_inner") or 4 * hidden
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_optional(inner, "num_key_value_heads", "num_kv_heads")
            or (1 if inner.get("multi_query") else heads),
            head_dim=_optional(inner, "head_dim") or hidden // heads,
            vocab=_whole(inner, "vocab_size"),
            intermediate=intermediate,
            gated=inner.get("model_type") not in _UNGATED,
            tied=bool(
                inner.get(
                    "tie_word_embeddings",
                    config.get("tie_word_embeddings", inner.get("model_type") in _TIED_BY_DEFAULT),
                )
            ),
            experts=_experts(inner, layers, intermediate),
            latent=_latent(inner),
            window=_optional(inner, "sliding_window") if inner.get("use_sliding_window", True) else None,
            sliding_layers=_sliding_layers(inner, layers),
            max_positions=_optional(
                inner, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"
            ),
            dtype_bytes=_BYTES.get(
                str(inner.get("dtype") or inner.get("torch_dtype") or "bfloat16").removeprefix("torch."), 2.0
            ),
            quantization=read_quantization(config.get("quantization_config") or inner.get("quantization_config")),
            only_text=bool(text),
        )


_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "opt", "bloom")
"""Model types whose config class ties the output to the embedding unless the file says otherwise (transformers)."""


def _whole(config: Mapping[str, Any], *keys: str) -> int:
    found = _optional(config, *keys)
    if found is None or found < 1:
        raise NotModelled(f"config.json has no {keys[0]}")
    return found


def _optional(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _experts(config: Mapping[str, Any], layers: int, intermediate: int) -> Experts | None:
    """DeepSeek: first_k_dense_replace, moe_layer_freq; Qwen: decoder_sparse_step, mlp_only_layers; Mixtral and gpt-oss: all layers."""
    count = _optional(config, "n_routed_experts", "num_experts", "num_local_experts")
    if not count or count < 2:
        return None
    width = _optional(config, "moe_intermediate_size", "expert_intermediate_size") or intermediate
    shared = _optional(config, "shared_expert_intermediate_size") or width * (
        _optional(config, "n_shared_experts") or 0
    )
    dense = set(range(_optional(config, "first_k_dense_replace") or 0)) | set(config.get("mlp_only_layers") or ())
    step = _optional(config, "decoder_sparse_step", "moe_layer_freq") or 1
    sparse = [at for at in range(layers) if at not in dense and (at + 1) % step == 0]
    return Experts(count, width, shared, len(sparse))


def _latent(config: Mapping[str, Any]) -> Latent | None:
    rank, rope = _optional(config, "kv_lora_rank"), _optional(config, "qk_rope_head_dim")
    if rank is None or rope is None:
        return None
    nope = _optional(config, "qk_nope_head_dim")
    v_dim = _optional(config, "v_head_dim")
    if nope is None or v_dim is None:
        raise NotModelled("config.json has kv_lora_rank but no qk_nope_head_dim or v_head_dim")
    return Latent(rank, rope, _optional(config, "q_lora_rank"), nope, v_dim)


def _sliding_layers(config: Mapping[str, Any], layers: int) -> int:
    """Gemma 3: every `sliding_window_pattern`-th layer is full; newer files list `layer_types`; Qwen2: from max_window_layers on."""
    if not _optional(config, "sliding_window") or not config.get("use_sliding_window", True):
        return 0
    kinds = config.get("layer_types")
    if kinds:
        return sum(kind != "full_attention" for kind in kinds)
    pattern = _optional(config, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern:
        return layers - layers // pattern
    first = _optional(config, "max_window_layers")
    return max(layers - first, 0) if first is not None else layers
