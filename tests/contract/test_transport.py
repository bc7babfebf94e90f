"""What every Transport does; a new one is a branch of `place`."""

from __future__ import annotations

import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdctl.errors import TransportError
from pdctl.hosts.local import LocalTransport
from pdctl.hosts.shim_client import ShimClient
from pdctl.hosts.transport import Transport
from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, Cluster, alive


@dataclass
class Place:
    """A host as a transport reaches it, with a folder that it shares with this machine."""

    transport: Transport
    folder: Path
    alive: Callable[[int], bool]
    python: str

    def kill(self, pid: int) -> None:
        self.transport.run(["/bin/kill", "-9", str(pid)])


@pytest.fixture(params=["local", "ssh"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield Place(LocalTransport("local"), tmp_path, alive, sys.executable)
        return
    from pdctl.hosts.ssh import SshTransport
    from pdctl.hosts.ssh_connection import Login

    bed = request.getfixturevalue("bed")
    login = Login()
    transport = SshTransport("h0", {"host": "h0"}, login, home=request.getfixturevalue("ssh_home"))
    folder = bed.shared / tmp_path.name
    folder.mkdir()
    yield Place(transport, folder, lambda pid: pid in {one.pid for one in bed.processes("h0")}, "python3")
    transport.close()
    login.close()
    shutil.rmtree(folder)


@pytest.fixture
def transport(place: Place) -> Transport:
    return place.transport


def test_run_returns_output_and_exit_code(transport: Transport) -> None:
    done = transport.run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in\xff")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"in\xff", b"err\n")


def test_arguments_are_not_read_by_a_shell(transport: Transport) -> None:
    assert transport.run(["/bin/echo", "$HOME; `id` 'x' \"y\""]).stdout == b"$HOME; `id` 'x' \"y\"\n"


def test_a_signal_is_a_negative_exit_code(transport: Transport) -> None:
    assert transport.run(["/bin/sh", "-c", "kill -9 $$"]).exit_code == -9


def test_a_time_out_is_an_error_and_leaves_nothing(transport: Transport, place: Place) -> None:
    pid_file = place.folder / "pid"
    with pytest.raises(TransportError) as error:
        transport.run(["/bin/sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.5)
    assert error.value.host == transport.host
    pid = int(pid_file.read_text())
    eventually(lambda: not place.alive(pid), 5, "the command's child is gone too")


def test_a_time_out_does_not_wait_for_who_else_holds_the_output(transport: Transport, place: Place) -> None:
    """A child that left the session keeps the pipe open; it is not ours to kill, nor to wait for."""
    pid_file = place.folder / "pid"
    began = time.monotonic()
    try:
        with pytest.raises(TransportError, match="did not end in"):
            transport.run(["/bin/sh", "-c", f"setsid sleep 30 & echo $! > {pid_file}; wait"], timeout_s=0.5)
        assert time.monotonic() - began < 10
    finally:
        place.kill(int(pid_file.read_text()))


def test_a_missing_program_is_an_error_with_the_host(transport: Transport) -> None:
    with pytest.raises(TransportError, match="no/such"):
        transport.run(["/no/such/program"])


def test_put_writes_whole_files_with_their_mode(transport: Transport, place: Place) -> None:
    target = place.folder / "new" / "deep" / "file"
    transport.put(str(target), b"one", mode=0o600)
    transport.put(str(target), b"two", mode=0o700)
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    (place.folder / "plain").write_text("")
    with pytest.raises(TransportError):
        transport.put(str(place.folder / "plain" / "file"), b"x")


def test_a_stream_yields_lines_as_they_come_and_ends_with_close(transport: Transport) -> None:
    stream = transport.stream(["/bin/sh", "-c", "read x; echo got $x; cat; echo end"], first_input=b"first\n")
    lines = stream.lines()
    assert next(lines) == b"got first"
    stream.close()


def test_a_stream_that_does_not_end_at_eof_is_terminated(transport: Transport) -> None:
    stream = transport.stream(["/bin/sh", "-c", "echo on; exec sleep 60"])
    assert next(stream.lines()) == b"on"
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_stream_that_refuses_sigterm_is_killed(transport: Transport, place: Place) -> None:
    stream = transport.stream(["/bin/sh", "-c", "trap '' TERM; echo $$; while :; do read x || sleep 60; done"])
    pid = int(next(stream.lines()))
    stream.close()
    assert not place.alive(pid)


def test_the_shim_installs_itself_and_does_all_its_verbs(transport: Transport, place: Place) -> None:
    client = ShimClient(transport, str(place.folder / "home"), place.python)
    cluster = Cluster(place.folder / "home" / "c")
    spec = cluster.spec("a", SERVE)
    spec["argv"] = [place.python, *spec["argv"][1:]]
    try:
        assert client.start("c", {"name": "c"}, [{"spec": spec, "env": {}}])["started"] == ["a"]
        watch = client.watch("c")
        messages = watch.messages()
        assert set(next(messages)["instances"]) == {"a"}
        eventually(lambda: client.query("c", load=True)["instances"]["a"]["state"] == "ready", 15)
        watch.close()
        (busy,) = client.busy_ports([("127.0.0.1", cluster.ports["a"])])
        assert busy["pid"] == client.query("c")["instances"]["a"]["pid"]
        client.note("c", {"more": 1})
        assert client.query("c")["cluster"] == {"name": "c", "more": 1}
        mine = client.lock("c", {"who": "me", "command": "up"})
        assert mine.held_by is None
        other = client.lock("c", {"who": "you", "command": "down"})
        assert other.held_by is not None
        assert other.held_by["who"] == "me"
        mine.close()
        logs = client.log_lines("c", ["--tail", "1"], ["a"])
        assert [line.split(b" ", 2)[2] for line in logs.lines()] == [b"serving"]
        logs.close()
    finally:
        stopped = client.stop("c", timeout_s=5, purge=True)
    assert (stopped["stopped"], stopped["left"]) == (["a"], [])
    assert not cluster.root.exists()
    assert [path.name[:5] for path in (place.folder / "home").iterdir()] == ["shim-"]


def test_a_workdir_that_cannot_be_written_is_said_with_its_path(transport: Transport, place: Place) -> None:
    (place.folder / "file").write_text("")
    client = ShimClient(transport, str(place.folder / "file" / "home"), place.python)
    with pytest.raises(TransportError, match=r"cannot write .*file/home/shim-.*: Not a directory") as error:
        client.query("c")
    assert error.value.host == transport.host
    with pytest.raises(TransportError, match="no/python"):
        ShimClient(transport, str(place.folder), "/no/python").query("c")
