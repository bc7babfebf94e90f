"""How pdctl reaches a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    """Negative: ended by that signal."""
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A running command whose output is read line by line."""

    def lines(self) -> Iterator[bytes]:
        """Yield lines of stdout without their newline until the command ends."""
        ...

    def write(self, data: bytes) -> None:
        """Give the command more input. Raises TransportError if it is gone."""
        ...

    def close(self) -> None:
        """End the command: its standard input is closed, then it is terminated."""
        ...


class Transport(Protocol):
    """One host. Methods raise TransportError if the host cannot be reached; they return values and print nothing."""

    host: str
    silent_loss: bool
    """Whether the line can go dead without either end being told."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        """Run a command to its end. A non-zero exit is a value, a timeout is a TransportError."""
        ...

    def put(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file atomically, with missing directories (0700). `~` is the remote home."""
        ...

    def stream(self, argv: Sequence[str], *, first_input: bytes = b"") -> Stream:
        """Start a command, write `first_input` to it and return its output as it comes.

        Its standard input stays open until `close` or the end of this process: the command sees EOF then.
        """
        ...

    def dial(self, address: str, port: int, timeout_s: float) -> Any:
        """Open a TCP connection from the host to an address; returns what http.client needs of a socket.

        Raises TransportError, or OSError where nothing listens."""
        ...

    def close(self) -> None: ...
