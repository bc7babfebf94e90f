"""Case 10: the engine's environment is not active in a non-interactive shell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beds import Many

SHELLS = ("h0", "h2", "h3", "csh")
"""bash, fish, zsh and tcsh as login shells."""


def topology(many: Many, **engine: Any) -> str:
    hosts = [{"name": name, "ssh": {"host": name}, "address": many.bed.address(name), "gpus": 1} for name in SHELLS]
    return str(many.topology(hosts=hosts, layout="2P2D", engine={"kind": "vllm", **engine}))


@pytest.fixture
def environment(many: Many) -> Iterator[Path]:
    """An environment that has a vLLM once it is activated; its path has a blank."""
    folder = many.bed.shared / "an env"
    info = folder / "site" / "vllm-0.22.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.1\n")
    (folder / "activate").write_text(f"export PYTHONPATH='{folder}/site'\n")
    yield folder
    shutil.rmtree(folder)


def test_nothing_given_names_every_host_and_both_ways_out(many: Many) -> None:
    up = many.pdctl("up", topology(many), "--json")
    assert up.code == 4, up.out
    findings = up.json["error"]["findings"]
    assert {one["host"] for one in findings} == set(SHELLS)
    for one in findings:
        assert one["check"] == "engine"
        assert "python3" in one["what"]
        assert "no vLLM" in one["what"]
        assert "engine.python" in one["fix"]
        assert "engine.activate" in one["fix"]
    many.nothing_left()


def test_an_activation_works_under_every_login_shell(many: Many, environment: Path) -> None:
    file = topology(many, activate=f"source '{environment}/activate'")
    plan = many.pdctl.ok("plan", file, "--hosts", "--format", "json").json
    assert plan["vllm_version"] == "0.22.1"


def test_a_mistake_in_the_activation_shows_its_own_words(many: Many) -> None:
    up = many.pdctl("up", topology(many, activate="source /no/such/activate"), "--json")
    assert up.code == 4, up.out
    findings = up.json["error"]["findings"]
    assert {one["host"] for one in findings} == set(SHELLS)
    assert all("/no/such/activate" in one["what"] for one in findings)
    many.nothing_left()


def test_an_interpreter_that_is_not_there(many: Many) -> None:
    up = many.pdctl("up", topology(many, python="/no/such/python"), "--json")
    assert up.code == 4, up.out
    assert all("/no/such/python" in one["what"] for one in up.json["error"]["findings"])


def test_gpus_and_driver_are_those_of_the_host(many: Many, environment: Path) -> None:
    host = {"name": "gpu", "ssh": {"host": "gpu"}, "address": many.bed.address("gpu")}
    file = many.topology(
        hosts=[host], layout="1P1D", tp=4, engine={"kind": "vllm", "activate": f"source '{environment}/activate'"}
    )
    plan = many.pdctl.ok("plan", str(file), "--hosts", "--format", "json").json
    assert plan["gpus"]["available"] == 8
    info = environment / "site" / "nvidia_cuda_runtime-13.0.48.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-runtime\nVersion: 13.0.48\n")
    gpus = json.loads(many.bed.gpus_file("gpu").read_text())
    many.bed.gpus_file("gpu").write_text(json.dumps(gpus).replace("999.1", "470.82.01"))
    up = many.pdctl("up", str(file), "--json")
    assert up.code == 4, up.out
    (finding,) = up.json["error"]["findings"]
    assert (finding["host"], finding["check"]) == ("gpu", "driver")
    assert "470.82.01" in finding["what"]
    assert "CUDA 13.0" in finding["what"]
