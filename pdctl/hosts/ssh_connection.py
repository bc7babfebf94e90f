"""One authenticated ssh connection, with paramiko: host keys verified, jump hosts, keys, agent, prompts, and a watch over dead lines."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from pdctl.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pdctl.hosts.ssh_config import SshTarget

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

_TRIES = 4
"""Connections to a server that hangs up before it has said who it is: sshd's MaxStartups drops at random."""
_PAUSE_S = 0.3
_KEEPALIVE_S = 5.0
_ASKABLE = {"password", "keyboard-interactive"}
"""Methods that a password does for: paramiko answers a single hidden question with it."""
_SILENT_S = 15.0
"""A server that doesn't answer a keepalive for so long is taken for gone."""


@dataclass
class Login:
    """What the user allows and can be asked, for all hosts of one command."""

    accept_new_host_keys: bool = False
    ask: Callable[[str], str] | None = None
    """Ask for a secret on the terminal; None where there is none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One question at a time, one writer of known_hosts at a time."""
    answers: dict[str, str] = field(default_factory=dict)
    """Secrets already given, by question."""
    jumps: dict[str, SshConnection] = field(default_factory=dict)
    """Open connections to jump hosts, which all hosts behind them share."""
    jump_lock: threading.RLock = field(default_factory=threading.RLock)

    def secret(self, question: str) -> str | None:
        """Return the answer to a question, asked once; None if nobody can be asked."""
        with self.lock:
            if question not in self.answers and self.ask is not None:
                self.answers[question] = self.ask(question)
            return self.answers.get(question)

    def close(self) -> None:
        """Close what hosts share."""
        with self.jump_lock:
            for connection in self.jumps.values():
                connection.close()
            self.jumps.clear()


class SshConnection:
    """An open connection; `open` makes one."""

    def __init__(self, host: str, target: SshTarget, client: paramiko.SSHClient) -> None:
        self._host, self._target, self._client = host, target, client
        transport = client.get_transport()
        assert transport is not None
        self.transport = transport
        self._watcher: threading.Thread | None = None

    @classmethod
    def open(cls, host: str, target: SshTarget, login: Login) -> SshConnection:
        """Connect and log in. Raises TransportError that says what to do."""
        for left in reversed(range(_TRIES)):
            client = paramiko.SSHClient()
            try:
                _connect(host, target, login, client)
            except _HungUp as error:
                client.close()
                if not left:
                    raise TransportError(
                        host,
                        f"{target.text} hung up before it said what it is: {error}",
                        fix="check that an ssh server listens there and lets you in (MaxStartups, fail2ban, DenyUsers)",
                        away=True,
                    ) from None
                time.sleep(_PAUSE_S * (1 + random.random()) * (_TRIES - left))  # noqa: S311 - spreads, protects nothing
            except BaseException:
                client.close()
                raise
            else:
                return cls(host, target, client)
        raise AssertionError("unreachable")

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def watch(self) -> None:
        """From now on, close the connection when the server stops answering: reads of long streams then end."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._keep_alive, name=f"keepalive {self._host}", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        self._client.close()

    def _keep_alive(self) -> None:
        while self.alive:
            timer = threading.Timer(_SILENT_S, self.transport.close)
            timer.daemon = True
            timer.start()
            try:
                self.transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                return
            finally:
                timer.cancel()
            time.sleep(_KEEPALIVE_S)


class _ProxyCommand(socket.socket):
    """A ProxyCommand as a socket: a real one, so that the command's end is the connection's (paramiko's own spins on it)."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        super().close()
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class _HungUp(Exception):
    """The server ended the connection before the login."""


class _UnknownKey(Exception):
    def __init__(self, key: paramiko.PKey) -> None:
        self.key = key


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise _UnknownKey(key)


class _AddUnknown(paramiko.MissingHostKeyPolicy):
    def __init__(self, file: Path, lock: threading.Lock) -> None:
        self._file, self._lock = file, lock

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        with self._lock:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file.open("a+") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read(1) not in ("", "\n"):
                    file.write("\n")
                file.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")


def _connect(host: str, target: SshTarget, login: Login, client: paramiko.SSHClient) -> None:
    for path in target.known_hosts:
        with suppress(OSError):
            client.load_system_host_keys(path)
    accepts = login.accept_new_host_keys or target.accepts_new_keys
    client.set_missing_host_key_policy(
        _AddUnknown(Path(target.known_hosts[0]), login.lock) if accepts and target.known_hosts else _RefuseUnknown()
    )
    password: str | None = None
    passphrase: str | None = None
    while True:
        try:
            _log_in(host, target, login, client, password, passphrase)
        except paramiko.PasswordRequiredException:
            question = f"Passphrase of the key for {target.text}: "
            if passphrase is not None or (passphrase := login.secret(question)) is None:
                raise TransportError(
                    host,
                    f"the key for {target.text} is encrypted",
                    fix="`ssh-add` it, or run pdctl on a terminal, where it asks",
                ) from None
        except paramiko.AuthenticationException as error:
            allowed = list(getattr(error, "allowed_types", ()) or ()) or _allowed(client)
            may_ask = bool(_ASKABLE & set(allowed)) and password is None
            if not may_ask or (password := login.secret(f"Password of {target.text}: ")) is None:
                raise _refused(host, target, allowed, passphrase) from None
        else:
            return


def _log_in(
    host: str, target: SshTarget, login: Login, client: paramiko.SSHClient, password: str | None, passphrase: str | None
) -> None:
    sock = _socket(host, target, login)
    files = [path for path in target.identity_files if Path(path).exists()]
    try:
        client.connect(
            target.host_key_name or target.hostname, 22 if target.host_key_name else target.port,
            username=target.user, password=password, passphrase=passphrase, key_filename=files,  # type: ignore[arg-type]  # a list is allowed (client.py)
            allow_agent=not target.identities_only, look_for_keys=not files, sock=sock,
            timeout=target.connect_timeout_s, banner_timeout=target.connect_timeout_s,
            auth_timeout=max(30.0, target.connect_timeout_s), channel_timeout=max(30.0, target.connect_timeout_s),
        )  # fmt: skip
    except _UnknownKey as unknown:
        raise TransportError(
            host,
            f"the host key of {target.text} is unknown: {_fingerprint(unknown.key)}",
            fix=f"compare the fingerprint and log in once with `ssh {target.name}`, or let pdctl note it with --accept-new-host-keys",
        ) from None
    except paramiko.BadHostKeyException as error:
        raise TransportError(
            host,
            f"the host key of {target.text} has changed: {_fingerprint(error.key)} instead of {_fingerprint(error.expected_key)}",
            fix=f"if the host was set up anew, `ssh-keygen -R '{target.key_name}'`; if not, somebody is in between",
        ) from None
    except paramiko.AuthenticationException:
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise _silent(host, target) from None
        if passphrase is not None and isinstance(error, paramiko.SSHException) and "key" in str(error):
            raise _refused(
                host, target, [], passphrase
            ) from None  # "Invalid key": what a wrong passphrase makes of one
        raise _HungUp(_said(error)) from None


def _socket(host: str, target: SshTarget, login: Login) -> Any:
    """Return something to speak ssh over: a TCP connection, a channel of the last jump host, or a ProxyCommand."""
    if target.proxy_command:
        return _ProxyCommand(target.proxy_command)
    if target.jumps:
        through = _jump(host, target.jumps, login)
        try:
            return through.transport.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=target.connect_timeout_s
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise TransportError(
                host,
                f"{target.jumps[-1].text} cannot reach {target.hostname}:{target.port}: {_said(error)}",
                fix="check the name as the jump host knows it, and that it may forward (AllowTcpForwarding)",
            ) from None
    try:
        return socket.create_connection((target.hostname, target.port), timeout=target.connect_timeout_s)
    except socket.gaierror as error:
        raise TransportError(
            host,
            f"the name {target.hostname} is not known here: {error.strerror}",
            fix="correct `ssh.host`, or ~/.ssh/config",
        ) from None
    except TimeoutError:
        raise _silent(host, target) from None
    except OSError as error:
        raise TransportError(
            host,
            f"{target.text}: {_said(error)}",
            fix="check that the host is up and an ssh server listens on that port",
            away=True,
        ) from None


def _jump(host: str, jumps: tuple[SshTarget, ...], login: Login) -> SshConnection:
    """Return the connection to the last jump host; all hosts behind it share it."""
    from dataclasses import replace

    last = replace(jumps[-1], jumps=jumps[:-1])
    key = " ".join(one.text for one in jumps)
    with login.jump_lock:
        known = login.jumps.get(key)
        if known is None or not known.alive:
            known = login.jumps[key] = SshConnection.open(host, last, login)
            known.watch()
        return known


def _allowed(client: paramiko.SSHClient) -> list[str]:
    """Ask the server what it would take; empty if it doesn't say."""
    transport = client.get_transport()
    if transport is None or not transport.is_active():
        return []
    try:
        transport.auth_none(transport.get_username() or "")
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, EOFError, OSError):
        return []
    return []


def _refused(host: str, target: SshTarget, allowed: list[str], passphrase: str | None) -> TransportError:
    offered = [Path(path).name for path in target.identity_files if Path(path).exists()]
    keys = ", ".join(offered) if offered else "the default keys"
    agent = "" if target.identities_only or not os.environ.get("SSH_AUTH_SOCK") else " and the agent's"
    wrong = " (wrong passphrase?)" if passphrase is not None else ""
    takes = f"; it takes {', '.join(allowed)}" if allowed else ""
    return TransportError(
        host,
        f"{target.text} refused the login with {keys}{agent}{wrong}{takes}",
        fix=f"make `ssh {target.name}` work first: the right user and key in `ssh:` or ~/.ssh/config, the public key in the host's authorized_keys",
    )


def _silent(host: str, target: SshTarget) -> TransportError:
    return TransportError(
        host,
        f"{target.text} does not answer within {target.connect_timeout_s:g} s",
        fix="check that the host is up and no firewall is in between",
        away=True,
    )


def _fingerprint(key: paramiko.PKey) -> str:
    digest = b64encode(sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _said(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
