"""Starts that fail on request, in every phase and way, and the children that a real engine has."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.conftest import eventually
from tests.integration.sim.engines import Sim, Start

PR_SET_CHILD_SUBREAPER = 36
ENDS = {
    "exit1": (1, "ValueError: --sim-fail asked for a failure in phase"),
    "exit0": (0, ""),
    "kill": (-signal.SIGKILL, ""),
    "kill-worker": (1, "Worker proc VllmWorker-1 died unexpectedly"),
    "oom": (1, "torch.OutOfMemoryError: CUDA out of memory"),
}
WRAPPER = "Engine core initialization failed. See root cause above"
MILESTONES = {
    "config": "non-default args",
    "load": "Loading safetensors checkpoint shards: 100%",
    "profile": "torch.compile took",
    "connector": "GPU KV cache size",
    "serve": "init engine (profile, create kv cache, warmup model) took",
}


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """End children that a dead engine has left: until then they become this process's own."""
    subreaper = ctypes.CDLL(None, use_errno=True).prctl
    assert subreaper(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    deadline = time.monotonic() + 10
    while left := [child for child in psutil.Process().children() if _is_of_a_tree(child)]:
        assert time.monotonic() < deadline, left
        for child in left:
            child.kill()
            child.wait(5)
    assert subreaper(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def _is_of_a_tree(child: psutil.Process) -> bool:
    try:
        return any(word.startswith("VLLM::") for word in child.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize("how", ENDS)
def test_each_way_to_die(start: Start, how: str) -> None:
    code, says = ENDS[how]
    one = start("--sim-fail", f"load:{how}", wait=False)
    assert one.process.wait(15) == code
    log = one.log.read_text()
    assert says in log
    assert (WRAPPER in log) == (code == 1), "the wrapper stands there for every death that Python saw"
    if code == 1:
        assert log.index(says) < log.index(WRAPPER), "the cause comes before the wrapper"


@pytest.mark.parametrize("phase", MILESTONES)
def test_each_phase_is_reached_and_not_passed(start: Start, phase: str) -> None:
    one = start("--sim-fail", f"{phase}:exit1", wait=False)
    assert one.process.wait(15) == 1
    log = one.log.read_text()
    before, at, _ = log.partition(f"asked for a failure in phase {phase}")
    assert at
    assert MILESTONES[phase] in before
    later = list(MILESTONES.values())[list(MILESTONES).index(phase) + 1 :]
    assert not any(text in log for text in later)


def test_a_start_that_hangs_lives_and_ends_on_request(start: Start) -> None:
    one = start("--sim-fail", "load:hang", wait=False)
    eventually(lambda: MILESTONES["load"] in one.log.read_text(), 15)
    assert one.process.poll() is None
    assert not one.healthy()
    one.process.terminate()
    assert one.process.wait(5) == 0


def test_a_taken_api_port_ends_the_start(start: Start) -> None:
    first = start()
    second = start("--port", first.url.rsplit(":", 1)[1], wait=False)
    assert second.process.wait(15) == 1
    assert "Errno 98" in second.log.read_text()
    assert first.healthy()


@pytest.fixture
def family(start: Start, orphans: None) -> tuple[Sim, dict[str, psutil.Process]]:
    """An engine with its children by name; one of them lives in another session, without environment."""
    one = start("--sim-tree")
    front = psutil.Process(one.process.pid)

    def children() -> dict[str, psutil.Process]:
        named = {child.cmdline()[-1]: child for child in front.children(recursive=True)}
        core = next((child for child in named.values() if "VLLM::EngineCore" in child.cmdline()), None)
        return named if core and len(named) == 3 and "VLLM::Worker_TP0" in named else {}

    found = eventually(children, 10, "three children")
    return one, found


def test_children_outlive_a_killed_front(family: tuple[Sim, dict[str, psutil.Process]]) -> None:
    one, children = family
    one.process.kill()
    one.process.wait()
    alive = [child for child in children.values() if child.status() != psutil.STATUS_ZOMBIE]
    assert len(alive) == 3, "as vLLM's do, with the GPUs"
    assert not one.healthy()


def test_workers_hide(family: tuple[Sim, dict[str, psutil.Process]]) -> None:
    one, children = family
    deep = children["VLLM::Worker_TP0"]
    assert os.getsid(deep.pid) != os.getsid(one.process.pid)
    assert deep.environ() == {}


@pytest.mark.parametrize("name", ["VLLM::Worker_TP1", "VLLM::EngineCore"])
def test_an_engine_dies_of_a_lost_child(family: tuple[Sim, dict[str, psutil.Process]], name: str) -> None:
    one, children = family
    next(child for child in children.values() if name in child.cmdline()).kill()
    assert one.process.wait(10) == 1
    assert "died unexpectedly" in one.log.read_text()
