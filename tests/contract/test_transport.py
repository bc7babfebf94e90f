"""What every Transport does; a new one is a line in FIXTURES."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdctl.errors import TransportError
from pdctl.hosts.local import LocalTransport
from pdctl.hosts.transport import Transport

FIXTURES: dict[str, Callable[[], Transport]] = {"local": lambda: LocalTransport("local")}


@pytest.fixture(params=FIXTURES)
def transport(request: pytest.FixtureRequest) -> Transport:
    return FIXTURES[request.param]()


def test_run_returns_output_and_exit_code(transport: Transport) -> None:
    done = transport.run(["/bin/sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in\xff")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"in\xff", b"err\n")


def test_arguments_are_not_read_by_a_shell(transport: Transport) -> None:
    assert transport.run(["/bin/echo", "$HOME; `id` 'x' \"y\""]).stdout == b"$HOME; `id` 'x' \"y\"\n"


def test_a_signal_is_a_negative_exit_code(transport: Transport) -> None:
    assert transport.run(["/bin/sh", "-c", "kill -9 $$"]).exit_code == -9


def test_a_time_out_is_an_error_and_leaves_nothing(transport: Transport, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(TransportError) as error:
        transport.run(["/bin/sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], timeout_s=0.5)
    assert error.value.host == transport.host
    pid = int(pid_file.read_text())
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_program_is_an_error_with_the_host(transport: Transport) -> None:
    with pytest.raises(TransportError, match="no/such"):
        transport.run(["/no/such/program"])


def test_put_writes_whole_files_with_their_mode(transport: Transport, tmp_path: Path) -> None:
    target = tmp_path / "new" / "deep" / "file"
    transport.put(str(target), b"one", mode=0o600)
    transport.put(str(target), b"two", mode=0o700)
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    (tmp_path / "plain").write_text("")
    with pytest.raises(TransportError):
        transport.put(str(tmp_path / "plain" / "file"), b"x")


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
