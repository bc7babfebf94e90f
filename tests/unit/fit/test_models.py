"""Well-known models: parameters as published, KV bytes as their shapes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.fit.architecture import Architecture, NotModelled
from pdctl.fit.kv_cache import bytes_per_token, crossing_bytes, request_bytes
from pdctl.fit.weights import gpu_bytes, total_bytes, total_parameters
from tests.conftest import ROOT

FILES = sorted((ROOT / "tests" / "data" / "models").glob("*.json"))
KV_BYTES = {
    "llama-3.1-8b": 2 * 32 * 8 * 128 * 2,
    "qwen3-32b": 2 * 64 * 8 * 128 * 2,
    "deepseek-v3": (512 + 64) * 2 * 61,
    "gpt-oss-120b": 2 * 36 * 8 * 64 * 2,
}


def model(name: str) -> Architecture:
    return Architecture.from_config(
        json.loads((ROOT / "tests" / "data" / "models" / f"{name}.json").read_text())["config"]
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_parameters_are_those_published(file: Path) -> None:
    data = json.loads(file.read_text())
    counted = total_parameters(Architecture.from_config(data["config"]))
    assert counted == pytest.approx(data["published_parameters"], rel=0.002)


@pytest.mark.parametrize(("name", "expected"), KV_BYTES.items())
def test_kv_bytes_of_a_token(name: str, expected: int) -> None:
    assert bytes_per_token(model(name), 2, tp=1, pp=1) == expected


def test_bytes_of_quantised_weights() -> None:
    """DeepSeek-V3's fp8 files have 688 GB with the MTP layer, gpt-oss-120b's mxfp4 files 65 GB."""
    assert total_bytes(model("deepseek-v3"), 2) == pytest.approx(674e9, rel=0.01)
    assert total_bytes(model("gpt-oss-120b"), 2) == pytest.approx(65.2e9, rel=0.01)


def test_heads_are_divided_down_to_one_and_a_latent_not_at_all() -> None:
    llama, deepseek = model("llama-3.1-8b"), model("deepseek-v3")
    one = bytes_per_token(llama, 2, tp=1, pp=1)
    assert [bytes_per_token(llama, 2, tp=tp, pp=1) for tp in (2, 8, 16)] == [one / 2, one / 8, one / 8]
    assert bytes_per_token(deepseek, 2, tp=8, pp=1) == bytes_per_token(deepseek, 2, tp=1, pp=1)
    assert bytes_per_token(llama, 2, tp=1, pp=4) == one / 4
    assert bytes_per_token(llama, 1, tp=1, pp=1) == one / 2, "fp8"


def test_what_crosses_is_counted_once_however_it_is_divided() -> None:
    assert crossing_bytes(model("qwen3-32b"), 2) == 262_144_000
    assert crossing_bytes(model("deepseek-v3"), 2) == 70_272_000


def test_sliding_layers_keep_their_window_with_the_hybrid_manager_only() -> None:
    gemma = model("gemma-3-27b")
    assert (gemma.sliding_layers, gemma.window) == (52, 1024)
    whole = request_bytes(gemma, 2, 32768, tp=1, pp=1, hybrid=False)
    assert whole == bytes_per_token(gemma, 2, tp=1, pp=1) * 32768
    part = request_bytes(gemma, 2, 32768, tp=1, pp=1, hybrid=True)
    assert part == 2 * 16 * 128 * 2 * (10 * 32768 + 52 * 1024)
    short = request_bytes(gemma, 2, 100, tp=1, pp=1, hybrid=True)
    assert short == request_bytes(gemma, 2, 100, tp=1, pp=1, hybrid=False)


def test_experts_are_divided_over_dp_too() -> None:
    one = model("qwen3-30b-a3b")
    alone, four = (gpu_bytes(one, 2, tp=1, pp=1, dp=dp) for dp in (1, 4))
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert alone - four == pytest.approx(experts * 3 / 4)
    dense = model("llama-3.1-8b")
    assert gpu_bytes(dense, 2, tp=1, pp=1, dp=4) == gpu_bytes(dense, 2, tp=1, pp=1, dp=1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 2, "mamba_d_state": 16}, "state"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9, "kv_lora_rank": 4, "qk_rope_head_dim": 2}, "v_head_dim"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said(config: dict[str, Any], says: str) -> None:
    with pytest.raises(NotModelled, match=says):
        Architecture.from_config(config)
