"""What must hold for any model and any sizes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pdctl.fit.architecture import Architecture
from pdctl.fit.estimate import GIB, Load, estimate
from pdctl.fit.kv_cache import bytes_per_token
from pdctl.fit.weights import gpu_bytes

MODELS = st.builds(
    lambda layers, heads, groups, dim, vocab, experts, tied: Architecture.from_config({
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": max(heads // groups, 1), "head_dim": dim,
        "hidden_size": heads * dim, "intermediate_size": 3 * heads * dim, "vocab_size": vocab, "tie_word_embeddings": tied,
        "max_position_embeddings": 4096, **({"num_local_experts": experts} if experts > 1 else {}),
    }),
    st.integers(1, 100), st.sampled_from([8, 16, 32, 64]), st.sampled_from([1, 2, 8]), st.sampled_from([64, 128]),
    st.integers(100, 200_000), st.sampled_from([0, 8, 64]), st.booleans(),
)  # fmt: skip
LOADS = st.builds(
    Load, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([2.0, 4.0]),
    st.sampled_from([1.0, 2.0]), st.none() | st.integers(1, 100_000), st.sampled_from([16, 64, 128]), st.sampled_from([2048, 8192]),
    st.booleans(), st.none() | st.floats(1 * GIB, 200 * GIB), st.floats(0.1, 0.95),
)  # fmt: skip


@given(MODELS, LOADS)
def test_more_ranks_never_take_more_weights_each(model: Architecture, load: Load) -> None:
    one = gpu_bytes(model, 2, tp=load.tp, pp=load.pp, dp=load.dp)
    assert gpu_bytes(model, 2, tp=load.tp * 2, pp=load.pp, dp=load.dp) <= one
    assert gpu_bytes(model, 2, tp=load.tp, pp=load.pp, dp=load.dp * 2) <= one
    assert gpu_bytes(model, 4, tp=load.tp, pp=load.pp, dp=load.dp) == 2 * one


@given(MODELS, LOADS)
def test_tokens_are_whole_blocks_and_never_negative(model: Architecture, load: Load) -> None:
    fit = estimate(model, load)
    assert (fit.tokens is None) == (load.gpu_bytes is None)
    if fit.tokens is not None and fit.kv_gib is not None:
        assert fit.tokens >= 0
        assert fit.tokens % load.block_size == 0
        assert fit.tokens / load.dp * fit.kv_bytes_per_token <= max(fit.kv_gib, 0) * GIB + 1
    assert all(isinstance(value, (int, float, type(None))) for value in fit.to_dict().values())


@given(MODELS, LOADS)
def test_given_space_needs_no_gpu(model: Architecture, load: Load) -> None:
    fit = estimate(model, replace(load, gpu_bytes=None, kv_cache_bytes=4 * GIB, hybrid=False))
    assert fit.kv_gib == 4
    assert fit.tokens is not None
    assert fit.tokens == load.dp * load.block_size * int(4 * GIB // (fit.kv_bytes_per_token * load.block_size))


@given(MODELS, st.sampled_from([1, 2, 4]))
def test_kv_grows_with_layers_and_halves_with_fp8(model: Architecture, tp: int) -> None:
    one = bytes_per_token(model, 2, tp=tp, pp=1)
    assert bytes_per_token(replace(model, layers=2 * model.layers), 2, tp=tp, pp=1) == 2 * one
    assert bytes_per_token(model, 1, tp=tp, pp=1) == one / 2
