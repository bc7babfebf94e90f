"""Starting, dying, restarting, stopping."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pdctl.vllm.signatures import STUCK
from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, Cluster, alive

DIE_AFTER_READY = SERVE.replace(
    "server.serve_forever()", "threading.Timer(0.5, lambda: __import__('os')._exit(3)).start(); server.serve_forever()"
)


def test_start_ready_stop_nothing_left(cluster: Cluster) -> None:
    assert cluster.start(cluster.spec("a", SERVE))["started"] == ["a"]
    state = cluster.wait("ready")
    assert alive(state["pid"])
    assert b"GIVEN=1" in Path(f"/proc/{state['pid']}/environ").read_bytes()
    stopped = cluster.stop()
    assert (stopped["stopped"], stopped["left"], stopped["proof"]["ports_free"]) == (["a"], [], True)
    assert not alive(state["pid"])
    assert not alive(state["shim_pid"]), "the supervisor ends with its instance"
    assert cluster.stop()["already"] == ["a"]
    assert cluster.state()["state"] == "stopped"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (cluster.root / "a").iterdir() if not path.is_symlink()}
    assert modes["env"] == 0o600
    assert modes["log"] == 0o700


def test_thirty_two_instances_in_one_call(cluster: Cluster) -> None:
    names = [f"i-{n}" for n in range(32)]
    assert sorted(cluster.start(*(cluster.spec(name, SERVE) for name in names))["started"]) == sorted(names)
    eventually(lambda: all(one["state"] == "ready" for one in cluster.call("query")["instances"].values()), 40)
    assert len(cluster.stop()["stopped"]) == 32


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("import sys; print('bad config', flush=True); sys.exit(1)", "exit code 1 before it was ready", 1),
        ("pass", "exit code 0 before it was ready", 0),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL before it was ready", None),
    ],
)
def test_death_before_ready_is_final_and_at_once(
    cluster: Cluster, code: str, reason: str, exit_code: int | None
) -> None:
    cluster.start(cluster.spec("a", code))
    state = cluster.wait("failed", timeout_s=3)
    assert (state["reason"], state["exit_code"], state["restarts"]) == (reason, exit_code, 0)
    assert state["changed_at"] - state["started_at"] < 1.5


def test_a_program_that_cannot_be_run(cluster: Cluster) -> None:
    answer = cluster.start(cluster.spec("a", "", argv=["/no/such/python"]))
    assert answer["failed"] == {"a": "cannot run /no/such/python: No such file or directory"}
    assert cluster.state()["state"] == "failed"


def test_death_after_ready_restarts_with_the_signal_on_record(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", SERVE))
    first = cluster.wait("ready")
    os.kill(first["pid"], signal.SIGKILL)
    eventually(lambda: (one := cluster.state())["restarts"] == 1 and one["state"] == "ready", 10)
    again = cluster.state()
    assert again["pid"] != first["pid"]
    assert [run["signal"] for run in again["runs"]] == ["SIGKILL", None]


def test_restarts_end_at_their_limit(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", DIE_AFTER_READY, restart={"max": 2, "backoff_s": 0.2}))
    state = cluster.wait("failed", timeout_s=20)
    assert state["restarts"] == 2
    assert "restart.max" in state["reason"]
    assert [run["exit_code"] for run in state["runs"]] == [3, 3, 3]
    first, second, third = state["runs"]
    assert second["started_at"] - first["ended_at"] >= 0.2
    assert third["started_at"] - second["ended_at"] >= 0.4, "each pause is twice the one before"


def test_the_same_early_death_twice_ends_the_restarts(cluster: Cluster, tmp_path: Path) -> None:
    """The first run gets ready; every later one dies of the same error before it is."""
    flag = tmp_path / "ran"
    code = (
        f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit(7)\nopen({str(flag)!r}, 'w').close()\n"
        + DIE_AFTER_READY
    )
    cluster.start(cluster.spec("a", code, restart={"max": 9}))
    state = cluster.wait("failed", timeout_s=20)
    assert "would fail again" in state["reason"]
    assert [run["exit_code"] for run in state["runs"]] == [3, 7, 7]


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [("never", DIE_AFTER_READY, "failed"), ("on-failure", DIE_AFTER_READY.replace("_exit(3)", "_exit(0)"), "failed")],
)
def test_policies_that_do_not_restart(cluster: Cluster, policy: str, code: str, state: str) -> None:
    cluster.start(cluster.spec("a", code, restart={"policy": policy}))
    assert cluster.wait(state)["restarts"] == 0


def test_a_start_that_takes_too_long_is_ended(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", "import time; time.sleep(99)", health={"startup_timeout_s": 1}))
    pid = cluster.state()["pid"]
    assert "not ready after 1 s" in cluster.wait("failed", timeout_s=8)["reason"]
    assert not alive(pid)


def test_a_start_that_can_never_be_ready_is_ended_at_once(cluster: Cluster) -> None:
    """vLLM's handshake listener dies of a taken port, and the engine waits for it for ever."""
    hang = "print('Exception in thread nixl_handshake_listener:', flush=True); import time; time.sleep(99)"
    stuck = [[pattern, reason] for pattern, reason in STUCK]
    cluster.start(cluster.spec("a", hang, stuck=stuck, health={"startup_timeout_s": 60}))
    pid = cluster.state()["pid"]
    assert cluster.wait("failed", timeout_s=8)["reason"] == f"would never be ready: {stuck[0][1]}"
    assert not alive(pid)


def test_the_same_line_of_a_ready_instance_ends_nothing(cluster: Cluster) -> None:
    late = SERVE.replace(
        "server.serve_forever()",
        "threading.Timer(0.8, print, ['late words'], {'flush': True}).start(); server.serve_forever()",
    )
    cluster.start(cluster.spec("a", late, stuck=[["late words", "never"]]))
    cluster.wait("ready")
    eventually(lambda: "late words" in cluster.texts(), 5, "the words are in the log")
    assert cluster.state()["state"] == "ready"


def test_bad_health_after_ready_is_unhealthy_and_good_health_is_ready_again(cluster: Cluster, tmp_path: Path) -> None:
    flag = tmp_path / "sick"
    code = SERVE.replace(
        "self.send_response(200)", f"self.send_response(500 if __import__('os').path.exists({str(flag)!r}) else 200)"
    )
    cluster.start(cluster.spec("a", code))
    cluster.wait("ready")
    flag.touch()
    assert "answers 500" in cluster.wait("unhealthy")["reason"]
    flag.unlink()
    assert cluster.wait("ready")["restarts"] == 0


def test_a_process_that_ignores_sigterm_is_killed(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", "import signal; signal.signal(15, signal.SIG_IGN)\n" + SERVE))
    pid = cluster.wait("ready")["pid"]
    assert cluster.stop(timeout_s=0.5)["left"] == []
    assert not alive(pid)


def test_phases_come_from_the_log_and_progress_bars(cluster: Cluster) -> None:
    code = "import sys, time; sys.stderr.write('shards: 1/4\\rshards: 3/4\\r'); sys.stderr.flush(); time.sleep(99)"
    cluster.start(cluster.spec("a", code, phases=[[r"shards: (\d)/(\d)", r"loading \1 of \2"]]))
    eventually(lambda: cluster.state()["phase"] == "loading 3 of 4", 5)


def test_parallel_starts_never_make_two_copies(cluster: Cluster) -> None:
    spec = cluster.spec("a", SERVE)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: cluster.start(spec), range(5)))
    assert sum(answer["started"] == ["a"] for answer in answers) == 1
    assert sum(answer["running"] == ["a"] for answer in answers) == 4
    assert cluster.start({**spec, "hash": "other"})["conflict"] == ["a"]


def test_an_unwritable_workdir_is_said(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cluster = Cluster(blocked / "c")
    answer = cluster.call("start", stdin={"cluster_info": None, "instances": []}, code=1)
    assert "file" in answer["error"]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="a small file system can be mounted by root only"
)
def test_a_full_disk_costs_lines_not_the_instance(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    cluster = Cluster(small / "c")
    try:
        flood = "import sys\nfor n in range(9000): print('x' * 100)\nsys.stdout.flush()\n"
        cluster.start(cluster.spec("a", flood + SERVE, logs={"max_bytes": 10**9}))
        cluster_pid = eventually(lambda: _pid(cluster), 10)
        eventually(lambda: _answers(cluster.ports["a"]), 15, "the instance serves although the disk is full")
        assert alive(cluster_pid)
    finally:
        cluster.stop(code=None)
        subprocess.run(["umount", "-l", str(small)], check=True)


def _pid(cluster: Cluster) -> int | None:
    found = cluster.call("query")["instances"].get("a", {})
    pid: int | None = found.get("pid")
    return pid


def _answers(port: int) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_shim_runs_on_the_oldest_python_it_promises() -> None:
    """No newer syntax than 3.9: the file is copied to hosts as it is."""
    import ast

    import pdctl.shim

    ast.parse(Path(pdctl.shim.__file__).read_text(), feature_version=(3, 9))
    done = subprocess.run(
        [sys.executable, "-I", "-S", pdctl.shim.__file__, "--version"], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"pdctl shim")
