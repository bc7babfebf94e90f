"""Ports, the lock, notes and the watch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, SHIM, Cluster, Lines, free_port


def test_listeners_are_busy_with_their_owner_and_time_wait_is_not(cluster: Cluster) -> None:
    plain, shared, waiting = socket.socket(), socket.socket(), socket.socket()
    shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    waiting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for one in (plain, shared, waiting):
        one.bind(("127.0.0.1", 0))
        one.listen()
    ports = {one: one.getsockname()[1] for one in (plain, shared, waiting)}
    client = socket.create_connection(("127.0.0.1", ports[waiting]))
    served, _ = waiting.accept()
    served.close()  # the server closes first: its side goes to TIME_WAIT
    client.close()
    waiting.close()
    free = free_port()
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert any(row[1].endswith(f":{ports[waiting]:04X}") and row[3] == "06" for row in rows), "it is in TIME_WAIT"
    try:
        asked = [["127.0.0.1", port] for port in (ports[plain], ports[shared], ports[waiting], free)]
        busy = {one["port"]: one for one in cluster.call("ports", stdin={"ports": asked})["busy"]}
    finally:
        plain.close()
        shared.close()
    assert set(busy) == {ports[plain], ports[shared]}
    assert busy[ports[plain]]["pid"] == os.getpid()
    assert "pytest" in busy[ports[plain]]["command"]


def test_the_owner_is_the_one_of_that_address(cluster: Cluster) -> None:
    """Two programs have the same port on two addresses; a listener on all addresses has it on each."""
    code = "import socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); print(1, flush=True); sys.stdin.read()"
    port, everywhere = free_port(), free_port()
    binds = [("127.0.0.1", port), ("127.0.0.2", port), ("0.0.0.0", everywhere)]
    listeners = [
        subprocess.Popen([sys.executable, "-c", code, address, str(one)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for address, one in binds
    ]
    try:
        for one in listeners:
            assert one.stdout is not None
            assert one.stdout.readline() == b"1\n"
        asked = [["127.0.0.2", port], ["127.0.0.1", port], ["127.0.0.1", everywhere]]
        busy = cluster.call("ports", stdin={"ports": asked})["busy"]
        assert [one["pid"] for one in busy] == [listeners[1].pid, listeners[0].pid, listeners[2].pid]
    finally:
        for one in listeners:
            one.communicate()


def test_an_address_of_another_machine_is_said(cluster: Cluster) -> None:
    (busy,) = cluster.call("ports", stdin={"ports": [["203.0.113.1", free_port()]]})["busy"]
    assert "assign requested address" in busy["error"]


def test_the_lock_says_who_and_goes_with_its_process(cluster: Cluster) -> None:
    argv = [*SHIM, "lock", str(cluster.root)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write(json.dumps({"who": "me", "command": "up"}).encode() + b"\n")
    holder.stdin.flush()
    assert json.loads(holder.stdout.readline()) == {"held": True}
    second = subprocess.run(argv, input=b'{"who": "you"}\n', capture_output=True, timeout=10)
    by = json.loads(second.stdout)
    assert (by["held"], by["by"]["who"], by["by"]["command"]) == (False, "me", "up")
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    third = subprocess.run(argv, input=b'{"who": "you"}\n', capture_output=True, timeout=10)
    assert json.loads(third.stdout) == {"held": True}
    fourth = subprocess.run(argv, input=b'{"who": "they"}\n', capture_output=True, timeout=10)
    assert json.loads(fourth.stdout) == {"held": True}, "the end of the third's input released it"


def test_notes_are_merged(cluster: Cluster) -> None:
    cluster.call("note", stdin={"a": 1})
    cluster.call("note", stdin={"b": 2})
    assert cluster.call("query")["cluster"] == {"a": 1, "b": 2}


def test_a_watch_tells_each_change(cluster: Cluster) -> None:
    cluster.start(cluster.spec("a", SERVE))
    watch = subprocess.Popen([*SHIM, "watch", str(cluster.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watch.stdout is not None
    assert watch.stdin is not None
    try:
        lines = Lines(watch)
        assert "a" in json.loads(lines.next(10) or b"{}")["instances"]
        state = cluster.wait("ready")
        os.kill(state["shim_pid"], signal.SIGKILL)
        seen: list[str] = []
        while "failed" not in seen:
            line = lines.next(5)
            assert line is not None, f"no message after {seen}"
            seen.append(json.loads(line)["state"])
    finally:
        watch.stdin.close()
        watch.wait(5)
        watch.stdout.close()
    eventually(lambda: cluster.stop()["left"] == [], 5)
