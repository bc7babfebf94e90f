"""A host over ssh as a Transport: one connection for all commands, opened when it is needed and again when it broke."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import paramiko

from pdctl.errors import TransportError
from pdctl.hosts.remote_command import RemoteCommand, exit_code_of, remote_command
from pdctl.hosts.ssh_config import SshTarget, resolve_target
from pdctl.hosts.ssh_connection import Login, SshConnection
from pdctl.hosts.transport import Completed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_BLOCK = 32768
_CLOSE_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 3.0
_SESSION_TIMEOUT_S = 5.0
_CONNECTIONS = 8
"""A server with MaxSessions 1 gets one connection per running command, up to so many."""
_NOT_RUN = (126, 127)
_PUT = (
    'export LC_ALL=C; umask 077; case $1 in "~/"*) path=$HOME/${1#"~/"};; *) path=$1;; esac; new="${path%/*}/.${path##*/}.$$"; '
    'mkdir -p "${path%/*}" && cat > "$new" && chmod "$2" "$new" && mv -f "$new" "$path" || { rm -f "$new"; exit 1; }'
)


class SshStream:
    """A running command on a host."""

    def __init__(self, transport: SshTransport, channel: paramiko.Channel, command: RemoteCommand, name: str) -> None:
        self._transport, self._channel, self._command, self._name = transport, channel, command, name
        self._group: int | None = None
        self._rest = b""
        self._closed = False

    def lines(self) -> Iterator[bytes]:
        """Yield lines; raises TransportError if the connection breaks before the command ends."""
        while True:
            if self._group is not None:
                *whole, self._rest = self._rest.split(b"\n")
                yield from whole
            try:
                data = self._channel.recv(_BLOCK)
            except OSError:
                data = b""
            if not data:
                break
            self._rest += data
            if self._group is None:
                begun = self._command.begin(self._rest)
                if begun is not None:
                    self._group, self._rest = begun
        if self._rest and self._group is not None:
            yield self._rest
            self._rest = b""
        while not (self._closed or self._channel.exit_status_ready()) and self._transport.connected:
            self._channel.status_event.wait(0.05)  # the status comes after the end of the output
        if not self._closed and self._channel.exit_status < 0:  # paramiko's -1: it was closed without one
            raise TransportError(
                self._transport.host,
                f"the connection was lost while `{self._name}` ran",
                fix="run the command again",
                away=True,
            )

    def write(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise TransportError(self._transport.host, f"the connection to `{self._name}` was lost: {error}") from None

    def close(self) -> None:
        self._closed = True
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()  # the command sees EOF and ends
        if not self._ends() and self._group is not None:
            for name in ("TERM", "KILL"):
                self._transport.signal_group(self._group, name)
                if self._ends():
                    break
        self._channel.close()

    def _ends(self) -> bool:
        """Read on until the command ends, for a moment: one that cannot write would not."""
        end = time.monotonic() + _CLOSE_TIMEOUT_S
        while time.monotonic() < end and self._transport.connected:
            if self._channel.exit_status_ready():
                return True
            self._channel.settimeout(0.05)
            with suppress(OSError):
                data = self._channel.recv(_BLOCK)
                if data and self._group is None:
                    self._rest += data
                    begun = self._command.begin(self._rest)
                    self._group = begun[0] if begun else None
                elif not data:
                    time.sleep(0.02)
        return self._channel.exit_status_ready() or not self._transport.connected


class SshTransport:
    """One host over ssh. Safe for several threads."""

    silent_loss = True

    def __init__(self, host: str, ssh: Mapping[str, Any], login: Login, *, home: Path | None = None) -> None:
        """`ssh` is the topology's `ssh:`; `home` has the .ssh folder, for tests. Nothing is connected yet."""
        self.host = host
        self._ssh, self._login, self._home = ssh, login, home
        self._target: SshTarget | None = None
        self._connections: list[SshConnection] = []
        self._lock = threading.Lock()

    @property
    def connected(self) -> bool:
        return any(one.alive for one in self._connections)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        end = time.monotonic() + timeout_s
        command = remote_command(argv)
        channel = self._start(command.line)
        out, err = bytearray(), bytearray()
        try:
            status = self._finish(channel, stdin, out, err, end)
            if status is None and time.monotonic() > end:
                self._end(command, bytes(out))
                raise TransportError(self.host, f"`{argv[0]}` did not end in {timeout_s:g} s")
        except KeyboardInterrupt:
            self._end(command, bytes(out))
            raise
        finally:
            channel.close()
        if status is None:
            raise TransportError(
                self.host, f"the connection was lost while `{argv[0]}` ran", fix="run the command again", away=True
            )
        return self._completed(argv[0], command, status, bytes(out), bytes(err))

    def _finish(
        self, channel: paramiko.Channel, stdin: bytes, out: bytearray, err: bytearray, end: float
    ) -> int | None:
        """Feed and read a command until it ends; returns its status, None if the time or the connection is over."""
        errors = threading.Thread(target=_read, args=(channel.recv_stderr, err), daemon=True)
        errors.start()
        threading.Thread(target=_write, args=(channel, stdin), daemon=True).start()
        with suppress(OSError):  # TimeoutError is one
            while True:
                channel.settimeout(max(0.001, end - time.monotonic()))
                data = channel.recv(_BLOCK)
                if not data:
                    break
                out += data
        errors.join(max(0.001, end - time.monotonic()))
        while not channel.exit_status_ready():
            if not self.connected or time.monotonic() > end:
                return None
            channel.status_event.wait(0.05)
        status = channel.recv_exit_status()
        return None if status < 0 else status  # paramiko's -1: the channel was closed without one

    def _completed(self, name: str, command: RemoteCommand, status: int, out: bytes, err: bytes) -> Completed:
        begun = command.begin(out)
        if begun is None:
            said = (err or out).decode(errors="replace").strip().splitlines()
            raise TransportError(
                self.host,
                f"the login shell runs no command: {said[-1] if said else f'exit code {status}'}",
                fix="give the user a shell that does (`chsh`), and profiles that let commands through",
            )
        errors = command.strip_errors(err)
        if status in _NOT_RUN:
            said = errors.decode(errors="replace").strip().splitlines()
            raise TransportError(
                self.host, f"cannot run `{name}`: {said[-1].rsplit(': ', 1)[-1] if said else 'not found'}"
            )
        return Completed(exit_code_of(status), begun[1], errors)

    def put(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        done = self.run(["/bin/sh", "-c", _PUT, "put", path, f"{mode:o}"], stdin=data)
        if done.exit_code:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            reason = said[0].rsplit(": ", 1)[-1] if said else f"exit code {done.exit_code}"
            raise TransportError(
                self.host, f"cannot write {path}: {reason}", fix="check the host's `workdir` and its disk"
            )

    def stream(self, argv: Sequence[str], *, first_input: bytes = b"") -> SshStream:
        command = remote_command(argv, mute_errors=True)
        channel = self._start(command.line, watched=True)
        with suppress(OSError, EOFError):
            channel.sendall(first_input)
        return SshStream(self, channel, command, argv[0])

    def dial(self, address: str, port: int, timeout_s: float) -> paramiko.Channel:
        connection = self._open_connection()
        try:
            channel = connection.transport.open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except paramiko.ChannelException as error:
            if error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
                raise TransportError(
                    self.host,
                    f"{self._where().text} forwards no connections",
                    fix="allow AllowTcpForwarding in its sshd_config",
                ) from None
            raise ConnectionRefusedError(f"{address}:{port} refuses the connection") from None
        except (paramiko.SSHException, EOFError) as error:
            raise TransportError(self.host, f"no connection to {address}:{port}: {error}") from None
        channel.settimeout(timeout_s)
        return channel

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def signal_group(self, group: int, name: str) -> None:
        """Signal a process group there, over what is open: a dead line is not dialled again for this."""
        command = remote_command(["/bin/sh", "-c", f"kill -s {name} -- -{group}"])
        for connection in list(self._connections):
            with suppress(paramiko.SSHException, EOFError, OSError):
                channel = connection.transport.open_session(timeout=_KILL_TIMEOUT_S)
                channel.exec_command(command.line)
                channel.status_event.wait(_KILL_TIMEOUT_S)
                channel.close()
                return

    def _end(self, command: RemoteCommand, out: bytes) -> None:
        begun = command.begin(out)
        if begun is not None and self.connected:
            self.signal_group(begun[0], "KILL")

    def _start(self, line: str, *, watched: bool = False) -> paramiko.Channel:
        channel, connection = self._open()
        if watched:
            connection.watch()
        try:
            channel.exec_command(line)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise TransportError(self.host, f"{self._where().text} runs no command: {error}") from None
        return channel

    def _open(self) -> tuple[paramiko.Channel, SshConnection]:
        """Return a channel of the first connection that gives one; a broken connection is replaced."""
        target = self._where()
        with self._lock:
            self._connections = [one for one in self._connections if one.alive]
            for connection in self._connections:
                try:
                    return connection.transport.open_session(timeout=_SESSION_TIMEOUT_S), connection
                except paramiko.ChannelException:
                    continue  # MaxSessions
                except (paramiko.SSHException, EOFError, OSError):
                    connection.close()  # it does not answer: a new one will show whether the host does
            self._connections = [one for one in self._connections if one.alive]
            if len(self._connections) >= _CONNECTIONS:
                raise TransportError(
                    self.host, f"{target.text} opens no more sessions", fix="raise MaxSessions in its sshd_config"
                )
            connection = SshConnection.open(self.host, target, self._login)
            self._connections.append(connection)
            try:
                return connection.transport.open_session(timeout=target.connect_timeout_s), connection
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise TransportError(
                    self.host, f"{target.text} opens no session: {error}", fix="check MaxSessions in its sshd_config"
                ) from None

    def _open_connection(self) -> SshConnection:
        with self._lock:
            self._connections = [one for one in self._connections if one.alive]
            if not self._connections:
                self._connections.append(SshConnection.open(self.host, self._where(), self._login))
            return self._connections[0]

    def _where(self) -> SshTarget:
        if self._target is None:
            self._target = resolve_target(self.host, self._ssh, self._home)
        return self._target


def _read(receive: Any, into: bytearray) -> None:
    with suppress(OSError, EOFError):
        while data := receive(_BLOCK):
            into += data


def _write(channel: paramiko.Channel, data: bytes) -> None:
    with suppress(OSError, EOFError, paramiko.SSHException):
        channel.sendall(data)
        channel.shutdown_write()
