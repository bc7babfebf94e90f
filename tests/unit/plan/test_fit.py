"""Memory in plans: what is refused with its numbers, what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdctl.plan.document import plan_document
from pdctl.plan.facts import Facts, Gpu, HostFacts
from tests.conftest import ROOT
from tests.planning import facts, plan_of, problems_of


def known(model: str = "qwen3-32b", memory_mib: int | None = None, gpus: int = 4) -> Facts:
    config = json.loads((ROOT / "tests" / "data" / "models" / f"{model}.json").read_text())["config"]
    found = facts("0.22.1", gpus, model_config=config)
    if memory_mib is None:
        return found
    seen = tuple(Gpu(at, f"GPU-{at}", "H100", memory_mib) for at in range(gpus))
    return Facts({"local": HostFacts("0.22.1", gpus=seen)}, model_config=config, directory="/srv", home="/home/u")


def text(tp: int = 2, more: str = "", args: str = "max-model-len: 32768") -> str:
    return f"model: m\nlayout: 1P1D\ntp: {tp}\nconnector: nixl\nengine: {{version: 0.22.1, args: {{{args}}}}}\nallow_idle_gpus: true\n{more}"


def fit_of(*given: Any) -> dict[str, Any]:
    found = plan_document(plan_of(*given))["fit"]
    assert isinstance(found, dict)
    return found


def test_figures_of_a_plan() -> None:
    fit = fit_of(text(), known(memory_mib=81920))
    decode = fit["roles"]["decode"]
    assert decode["weight_gib"] == pytest.approx(30.5, abs=0.1)
    assert decode["kv_bytes_per_token"] == 131072
    assert decode["utilization"] == 0.92, "0.22.1's default, by its own parser"
    assert decode["tokens"] == pytest.approx(decode["kv_gib"] * 2**30 / 131072, abs=16)
    assert decode["concurrency"] == pytest.approx(decode["tokens"] / 32768, abs=0.001)
    assert fit["crossing"]["bytes"] == 262_144_000
    assert fit["crossing"]["seconds"]["100 Gbit/s"] == pytest.approx(0.021, abs=0.001)
    assert any("each P or D replica holds the whole model: 2 replicas" in note for note in fit["notes"])


def test_without_gpu_memory_only_what_is_known_is_said() -> None:
    decode = fit_of(text(), known())["roles"]["decode"]
    assert (decode["kv_gib"], decode["tokens"], decode["concurrency"]) == (None, None, None)
    assert decode["weight_gib"] > 30


def test_memory_can_be_given_in_the_file() -> None:
    fit = fit_of(text(more="hosts: [{name: local, gpus: 4, gpu_memory: 80GiB}]\n"), known())
    assert fit["roles"]["prefill"]["gpu_gib"] == 80


def test_weights_that_do_not_fit_are_an_error_with_the_numbers() -> None:
    found = problems_of(text(1), known(memory_mib=49140))
    assert [one.path for one in found] == ["tp", "tp"]
    assert "each prefill replica holds the whole model: 61.0 GiB of weights" in found[0].what
    assert "48.0 GiB x 0.92 = 44.1 GiB" in found[0].what
    assert "larger prefill.tp" in found[0].fix


def test_a_length_that_does_not_fit_names_the_one_that_does() -> None:
    (problem, _) = problems_of(text(1, args="max-model-len: 128k"), known(memory_mib=81920))
    assert problem.path == "engine.args.max-model-len"
    assert "asks for 128000" in problem.what
    length = int(problem.fix.split()[3])
    assert length % 16 == 0
    assert problems_of(text(1, args=f"max-model-len: {length}"), known(memory_mib=81920)) == []


@pytest.mark.parametrize(
    ("tp", "says"), [(3, "tp 3 does not divide the model's 64 attention heads"), (16, ""), (8, "")]
)
def test_heads_and_tp(tp: int, says: str) -> None:
    found = [one for one in problems_of(text(tp), known(gpus=64)) if "divide" in one.what]
    assert bool(found) is bool(says)
    assert all(says in one.what for one in found)


def test_fp8_cache_and_quantisation_and_given_space() -> None:
    half = fit_of(text(args="kv-cache-dtype: fp8, quantization: fp8"), known(memory_mib=81920))["roles"]["decode"]
    assert half["kv_bytes_per_token"] == 65536
    assert half["weight_gib"] == pytest.approx(15.6, abs=0.7)
    given = fit_of(text(args="kv-cache-memory-bytes: 8G"), known())["roles"]["decode"]
    assert given["kv_gib"] == 8
    assert given["tokens"] == 65536


def test_shared_gpus_share_the_memory() -> None:
    shared = "share_gpus: 2\n"
    small = known("qwen3-0.6b", memory_mib=81920, gpus=1)
    decode = fit_of(text(1, shared), small)["roles"]["decode"]
    assert decode["utilization"] == 0.45


def test_nothing_is_claimed_of_what_is_not_modelled() -> None:
    state = facts("0.22.1", 4, model_config={"num_hidden_layers": 2, "layer_types": ["linear_attention"]})
    fit = fit_of(text(), state)
    assert fit["roles"] == {}
    assert "not modelled" in fit["notes"][0]
    assert plan_of(text(), facts("0.22.1", 4)).fit is None, "no config.json"
