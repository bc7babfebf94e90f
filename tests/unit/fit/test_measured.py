"""The estimate against what a real vLLM logged: 0.22.1 on an H200, a Qwen3 shape of 0.6B, 3 GiB of KV cache given."""

from __future__ import annotations

import re

import pytest

from pdctl.fit.architecture import Architecture
from pdctl.fit.estimate import Load, estimate
from tests.conftest import ROOT

LOG = (ROOT / "tests" / "data" / "logs" / "healthy-0.22.1-h200.txt").read_text()
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "float16", "max_position_embeddings": 40960,
}  # fmt: skip


def logged(pattern: str) -> float:
    found = re.search(pattern, LOG)
    assert found, pattern
    return float(found[1].replace(",", ""))


def test_the_h200s_log() -> None:
    load = Load(
        tp=1, pp=1, dp=1, dtype_bytes=2, kv_bytes=2, max_model_len=8192, block_size=16, batched_tokens=8192, hybrid=True,
        gpu_bytes=140 * 2.0**30, utilization=0.08, kv_cache_bytes=logged(r"'kv_cache_memory_bytes': (\d+)"),
    )  # fmt: skip
    fit = estimate(Architecture.from_config(QWEN3_06B), load)
    assert fit.tokens == logged(r"GPU KV cache size: ([\d,]+) tokens")
    assert fit.weight_gib == pytest.approx(logged(r"Model loading took ([\d.]+) GiB"), rel=0.02)
