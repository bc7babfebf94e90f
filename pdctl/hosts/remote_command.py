"""An argv as one command line that every login shell hands on unread. The only place where pdctl quotes for a remote shell. Pure.

sshd gives the command to the login shell, which may be sh, zsh, fish or csh, after a profile that may print anything. So the line holds only
what all of them take alike, starts /bin/sh, marks where the output begins on both streams, and carries the argv in octal.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN = re.compile(rb"[A-Za-z0-9/._=,:+@%-]")
# Profiles may have gone elsewhere: commands start at home. The command is a child, not the shell itself: its end by a signal is then 128 + n, which survives ssh.
_SCRIPT = 'cd; echo; echo "$1 $$"; echo >&2; echo "$1" >&2; eval "$(printf %b "$0")"'
_SIGNALS = range(129, 193)


@dataclass(frozen=True)
class RemoteCommand:
    """A command line for sshd, and how to read what comes back."""

    line: str
    mark: bytes

    def begin(self, out: bytes) -> tuple[int, bytes] | None:
        """Split what came on stdout so far into (process group, the command's own output); None before the mark."""
        start = re.search(rb"(?:^|\n)" + self.mark + rb" (\d+)\n", out)
        return (int(start[1]), out[start.end() :]) if start else None

    def strip_errors(self, err: bytes) -> bytes:
        """Return what the command itself wrote to stderr."""
        _, found, own = err.partition(self.mark + b"\n")
        return own if found else err


def remote_command(argv: Sequence[str], *, mute_errors: bool = False) -> RemoteCommand:
    """Return the command line that runs `argv` with exactly these arguments; `mute_errors` discards its stderr."""
    mark = f"pdctl-{secrets.token_hex(8)}"
    text = shlex.join(argv) + (" 2>/dev/null" if mute_errors else "")
    return RemoteCommand(f"exec /bin/sh -c '{_SCRIPT}' '{_octal(os.fsencode(text))}' {mark}", mark.encode())


def exit_code_of(status: int) -> int:
    """Return a shell's exit status as pdctl counts: negative for the end by a signal."""
    return 128 - status if status in _SIGNALS else status


def _octal(data: bytes) -> str:
    """Write bytes so that `printf %b` gives them back and no shell sees anything in them."""
    return "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"\\0{byte:03o}" for byte in data)
