"""This machine as a Transport."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.errors import TransportError
from pdctl.hosts.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CLOSE_TIMEOUT_S = 2.0


class LocalStream:
    """A running command here."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip(b"\n")

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise TransportError("local", f"the command is gone: {error}") from error

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()  # the command sees EOF and ends
        except BrokenPipeError:
            pass
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _kill_group(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()


class LocalTransport:
    """Runs commands in sessions of their own, so that a Ctrl-C at the terminal reaches pdctl alone."""

    silent_loss = False

    def __init__(self, host: str = "local") -> None:
        self.host = host

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        process = self._start(argv)
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise TransportError(self.host, f"`{argv[0]}` did not end in {timeout_s:g} s") from None
        except BaseException:
            _kill_group(process)
            raise
        return Completed(process.returncode, out, err)

    def put(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        target = Path(path).expanduser()
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                file.write(data)
            fresh.replace(target)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise TransportError(
                self.host,
                f"cannot write {target}: {error.strerror or error}",
                fix="check the host's `workdir` (or PDCTL_HOME)",
            ) from error

    def stream(self, argv: Sequence[str], *, first_input: bytes = b"") -> LocalStream:
        process = self._start(argv, errors=subprocess.DEVNULL)
        assert process.stdin is not None
        try:
            process.stdin.write(first_input)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already: its output says why
        return LocalStream(process)

    def dial(self, address: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((address, port), timeout=timeout_s)

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _start(self, argv: Sequence[str], errors: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise TransportError(self.host, f"cannot run `{argv[0]}`: {error.strerror or error}") from error


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        # Closed without reading on: a child in a session of its own may hold the other end for ever.
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
