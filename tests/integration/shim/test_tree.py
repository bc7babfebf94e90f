"""The whole tree goes, and nobody else's (case 8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, Cluster, alive

SLEEP = "import time; time.sleep(999)"
# A child, a grandchild in a session of its own without the environment, and one whose parent is gone.
FAMILY = (
    f"""
import os, subprocess, sys
run = [sys.executable, '-I', '-S', '-c']
children = [subprocess.Popen([*run, {SLEEP!r}, 'child'])]
children.append(subprocess.Popen(['renamed', *run[1:], {SLEEP!r}], executable=sys.executable, start_new_session=True, env={{}}))
middle = subprocess.run([*run, "import subprocess, sys; print(subprocess.Popen([sys.executable, '-I', '-S', '-c', {SLEEP!r}, 'orphan'], "
    "start_new_session=True, env={{}}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"], capture_output=True, text=True)
print('family', *[one.pid for one in children], int(middle.stdout), flush=True)
"""
    + SERVE
)


def family(cluster: Cluster, name: str = "a") -> list[int]:
    line = eventually(lambda: next((one for one in cluster.texts(name) if one.startswith("family")), None), 10)
    pids = [int(word) for word in line.split()[1:]]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    return pids


def test_stop_ends_children_in_other_sessions_and_orphans(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", FAMILY))
    cluster.wait("ready")
    pids = family(cluster)
    assert cluster.state()["alive"] == 4
    assert cluster.stop()["left"] == []
    assert not any(alive(pid) for pid in pids)


def test_death_of_the_front_process_ends_its_family_before_the_restart(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", FAMILY))
    front = cluster.wait("ready")["pid"]
    pids = family(cluster)
    os.kill(front, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids), 8)
    eventually(lambda: cluster.state()["restarts"] == 1 and cluster.state()["state"] == "ready", 10)
    assert cluster.state()["alive"] == 4


def test_a_killed_supervisor_is_no_longer_ready_and_stop_finds_everything(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", FAMILY))
    state = cluster.wait("ready")
    pids = family(cluster)
    recorded = cluster.root / "a" / "state.json"
    eventually(lambda: all(f"[{pid}, " in recorded.read_text() for pid in pids), 10, "the tree is on record")
    os.kill(state["shim_pid"], signal.SIGKILL)
    seen = cluster.wait("failed", timeout_s=3)
    assert seen["shim_alive"] is False
    assert "supervisor" in seen["reason"]
    assert seen["alive"] == 4
    os.kill(state["pid"], signal.SIGKILL)  # and the front process too: only the record is left
    stopped = cluster.stop()
    assert stopped["stopped"] == ["a"]
    assert stopped["left"] == []
    assert not any(alive(pid) for pid in pids)


def test_start_after_a_killed_supervisor_never_makes_two_copies(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", FAMILY))
    state = cluster.wait("ready")
    pids = family(cluster)
    recorded = cluster.root / "a" / "state.json"
    eventually(lambda: all(f"[{pid}, " in recorded.read_text() for pid in pids), 10, "the tree is on record")
    os.kill(state["shim_pid"], signal.SIGKILL)
    cluster.wait("failed", timeout_s=3)
    assert cluster.start(cluster.spec("a", FAMILY))["started"] == ["a"]
    assert not any(alive(pid) for pid in [*pids, state["pid"]])
    assert cluster.wait("ready")["alive"] == 4


def test_processes_that_only_look_alike_are_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    other = Cluster(tmp_path / "home" / "other")
    stranger = subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEP, "child"])
    try:
        cluster.start(cluster.spec("a", FAMILY))
        other.start(other.spec("a", FAMILY))
        cluster.wait("ready")
        pids = [other.wait("ready")["pid"], *family(other)]
        os.kill(cluster.state()["shim_pid"], signal.SIGKILL)
        cluster.wait("failed")
        assert cluster.stop()["left"] == []
        assert all(alive(pid) for pid in pids)
        assert stranger.poll() is None
    finally:
        other.stop(code=None)
        stranger.kill()
        stranger.wait()


def test_processes_that_fork_while_they_are_killed(cluster: Cluster) -> None:
    code = (
        "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    for _ in range(400):\n"
        "        if os.fork(): time.sleep(0.01); os._exit(0)\n"
        "        os.setsid()\n"
        "    os._exit(0)\n"
    ) + SERVE
    cluster.start(cluster.spec("a", code))
    cluster.wait("ready")
    stopped = cluster.stop(timeout_s=0.2)
    assert stopped["left"] == []
    assert cluster.state()["alive"] == 0


def test_shared_memory_of_the_tree_is_removed_and_nobody_elses(cluster: Cluster) -> None:
    name, foreign = f"pdctl-test-{os.getpid()}", Path(f"/dev/shm/pdctl-foreign-{os.getpid()}")
    foreign.write_bytes(b"x")
    code = (
        f"import mmap, os\nf = open('/dev/shm/{name}', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)\n"
        + SERVE
    )
    try:
        cluster.start(cluster.spec("a", code))
        cluster.wait("ready")
        recorded = cluster.root / "a" / "state.json"
        eventually(lambda: name in recorded.read_text(), 10)
        assert cluster.stop()["left"] == []
        assert not Path(f"/dev/shm/{name}").exists()
        assert foreign.exists()
    finally:
        foreign.unlink()
