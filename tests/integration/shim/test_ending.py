"""Ends that meet: a stop while a tree is dying, last words, records of another boot, shared memory of the last moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from pdctl.shim import process
from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, SHIM, Cluster, Lines, alive

STUBBORN_CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', "
    "\"import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)\"])\n"
)


def test_a_stop_while_a_failed_tree_is_ended_leaves_its_reason(cluster: Cluster) -> None:
    code = STUBBORN_CHILD + "time.sleep(0.5)\nsys.exit(4)\n"
    cluster.start(cluster.spec("a", code))
    shim = cluster.wait("failed")["shim_pid"]
    assert alive(shim), "its child refuses SIGTERM: the supervisor is still at it"
    assert cluster.stop()["left"] == []
    assert cluster.state()["reason"] == "exit code 4 before it was ready"
    assert not (cluster.root / "a" / "shim.err").exists()


def test_a_stop_timeout_of_nothing_kills_at_once(cluster: Cluster) -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN)\n" + SERVE
    cluster.start(cluster.spec("a", code, stop_timeout_s=30))
    cluster.wait("ready")
    began = time.monotonic()
    assert cluster.stop(timeout_s=0)["left"] == []
    assert time.monotonic() - began < 4
    assert cluster.state()["signal"] == "SIGKILL"


def test_last_words_come_before_the_end(cluster: Cluster) -> None:
    code = "import os\nfor n in range(3000): os.write(1, b'%d\\n' % n)\nos.write(1, b'last words')\nos._exit(1)\n"
    names = [f"i-{n}" for n in range(6)]
    cluster.start(*(cluster.spec(name, code) for name in names))
    for name in names:
        cluster.wait("failed", name)
        texts = [line.split(" ", 2)[2] for line in cluster.logs(name)]
        ended = next(at for at, text in enumerate(texts) if text.startswith("pdctl: run 1 ended"))
        assert texts[1:ended] == [*(str(n) for n in range(3000)), "last words"]


def test_a_record_of_another_boot_names_nobody(cluster: Cluster) -> None:
    """Pids and start times repeat from boot to boot: whoever has them now is a stranger."""
    cluster.start(cluster.spec("a", SERVE))
    cluster.wait("ready")
    cluster.stop()
    stranger = subprocess.Popen(["sleep", "99"], start_new_session=True)
    try:
        found = process(stranger.pid)
        assert found is not None
        path = cluster.root / "a" / "state.json"
        record = json.loads(path.read_text())
        ours = [[stranger.pid, found.start]]
        record.update(
            state="ready", boot_id="another", tree=ours, sessions=ours, shim_pid=stranger.pid, shim_start=found.start
        )
        path.write_text(json.dumps(record))
        seen = cluster.state()
        assert (seen["state"], seen["reason"], seen["alive"]) == ("failed", "the host was restarted", 0)
        assert cluster.stop()["already"] == ["a"]
        assert cluster.start(cluster.spec("a", SERVE))["started"] == ["a"]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.slow
@pytest.mark.parametrize("used_by_another", [False, True])
def test_shared_memory_of_the_last_moment(cluster: Cluster, used_by_another: bool) -> None:
    """Made after the last look at the tree, and removed all the same; never while somebody else maps it."""
    segment = Path(f"/dev/shm/pdctl-late-{os.getpid()}")
    make = f"global m; f = open('{segment}', 'w+b'); f.truncate(4096); m = __import__('mmap').mmap(f.fileno(), 4096)"
    code = SERVE.replace(
        "self.send_response(200)", f"exec({make!r}) if 'make' in self.path else 0; self.send_response(200)"
    )
    cluster.start(cluster.spec("a", code))
    cluster.wait("ready")
    record = cluster.root / "a" / "state.json"
    eventually(lambda: time.time() - record.stat().st_mtime > 2, 10, "the supervisor looks seldom now")
    user = None
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports['a']}/make", timeout=5).close()
        assert segment.exists()
        if used_by_another:
            hold = f"import mmap; f = open('{segment}', 'r+b'); m = mmap.mmap(f.fileno(), 0); print(1, flush=True); input()"
            user = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert user.stdout is not None
            assert user.stdout.readline() == b"1\n"
        assert cluster.stop()["left"] == []
        assert segment.exists() is used_by_another
    finally:
        if user is not None:
            user.communicate(b"\n")
        segment.unlink(missing_ok=True)


def test_an_orderly_end_is_never_called_a_lost_supervisor(cluster: Cluster) -> None:
    names = [f"i-{n}" for n in range(6)]
    cluster.start(*(cluster.spec(name, SERVE) for name in names))
    for name in names:
        cluster.wait("ready", name)
    watch = subprocess.Popen([*SHIM, "watch", str(cluster.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watch.stdin is not None
    assert watch.stdout is not None
    try:
        lines = Lines(watch)
        assert set(json.loads(lines.next(10) or b"{}")["instances"]) == set(names)
        cluster.stop()
        last: dict[str, str] = {}
        while set(last) != set(names) or set(last.values()) != {"stopped"}:
            line = lines.next(5)
            assert line is not None, f"no message after {last}"
            message = json.loads(line)
            assert "gone" not in (message["reason"] or "")
            last[message["instance"]] = message["state"]
    finally:
        watch.stdin.close()
        watch.wait(5)
        watch.stdout.close()


def test_a_hang_up_of_the_starters_session_changes_nothing(cluster: Cluster) -> None:
    """The starter's shell is alive when its terminal goes, so there is somebody to hang up."""
    order = {"cluster_info": None, "instances": [{"spec": cluster.spec("a", SERVE), "env": {}}]}
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; read forever < /dev/zero', "sh", *SHIM, "start", str(cluster.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        shell.stdin.write(json.dumps(order).encode())
        shell.stdin.close()
        assert json.loads(shell.stdout.readline())["started"] == ["a"]
        state = cluster.wait("ready")
        os.killpg(shell.pid, signal.SIGHUP)
        assert shell.wait(5) == -signal.SIGHUP
        os.kill(state["shim_pid"], signal.SIGHUP)  # and one meant for the supervisor itself
        urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports['a']}/health", timeout=5).close()
        now = cluster.state()
        assert (now["state"], now["pid"], now["shim_alive"]) == ("ready", state["pid"], True)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        shell.stdout.close()


def test_always_means_after_a_good_end_too(cluster: Cluster) -> None:
    code = SERVE.replace(
        "server.serve_forever()",
        "threading.Timer(0.4, lambda: __import__('os')._exit(0)).start(); server.serve_forever()",
    )
    cluster.start(cluster.spec("a", code, restart={"policy": "always", "max": 1, "backoff_s": 0.1}))
    runs = eventually(lambda: (one := cluster.state())["state"] == "failed" and one, 20)["runs"]
    assert [run["exit_code"] for run in runs] == [0, 0]


def test_orphans_come_to_the_supervisor_and_are_reaped(cluster: Cluster) -> None:
    make = "import subprocess; print(subprocess.Popen(['sleep', '99'], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    code = f"import subprocess, sys\nprint('orphan', subprocess.run([sys.executable, '-c', {make!r}], stdout=-1).stdout.decode(), flush=True)\n"
    cluster.start(cluster.spec("a", code + SERVE))
    shim = cluster.wait("ready")["shim_pid"]
    (line,) = [text for text in cluster.texts() if text.startswith("orphan")]
    orphan = int(line.split()[1])
    found = process(orphan)
    assert found is not None
    assert found.ppid == shim
    os.kill(orphan, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{orphan}").exists(), 3, "no zombie is left of it")
