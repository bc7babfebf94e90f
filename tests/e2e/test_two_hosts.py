"""Real vLLM on CPU with prefill and decode on two hosts: started over ssh, KV over their network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.beds import Many, on_hosts
from tests.conftest import free_block

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_kv_crosses_between_hosts(many: Many, vllm_python: Path, tiny_model: Path) -> None:
    model = many.bed.shared / "tiny-llama"
    shutil.copytree(tiny_model, model)
    base = free_block()
    hosts = [
        {"name": name, "ssh": {"host": name}, "address": many.bed.address(name), "python": on_hosts(vllm_python)}
        for name in ("h0", "h2")
    ]
    file = many.pdctl.topology(
        name="real",
        model=str(model),
        engine={
            "kind": "vllm",
            "device": "cpu",
            "args": {"dtype": "float32", "max-model-len": 1024, "enforce-eager": True},
            "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
        },
        hosts=hosts,
        placement=[{"instance": "producer-0", "host": "h0"}, {"instance": "consumer-0", "host": "h2"}],
        restart={"policy": "never"},
        ports={"base": base, "size": 90},
        proxy={"kind": "none"},
    )
    try:
        up = many.pdctl.ok("up", str(file), "--json", timeout_s=600).json
        assert up["verify"]["ok"] is True, up["headline"]
        (pair,) = up["verify"]["pairs"]
        assert pair["verdict"] == "used"
        assert pair["tokens"] == pair["expected"] > 0
        assert pair["bytes"] > 0
        placed = {one["name"]: one["host"] for one in many.pdctl.status()["instances"]}
        assert placed == {"producer-0": "h0", "consumer-0": "h2"}
        assert many.pdctl.ok("down", "--json", timeout_s=120).json["clean"] is True
        many.nothing_left("h0", "h2")
    finally:
        shutil.rmtree(model)
