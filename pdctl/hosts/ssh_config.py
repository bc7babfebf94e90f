"""Where a host's ssh server is and how to log in: the topology's `ssh:` over ~/.ssh/config, resolved as OpenSSH does."""

from __future__ import annotations

import getpass
import io
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import paramiko

_DEPTH = 16
"""Nested Includes, as in OpenSSH (readconf.c, READCONF_MAX_DEPTH)."""
_CONNECT_TIMEOUT_S = 10.0
_HOP = re.compile(
    r"^(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:]+|[0-9A-Fa-f:]+:[0-9A-Fa-f:]*)(?::(?P<port>\d+))?/?$"
)


@dataclass(frozen=True)
class SshTarget:
    """One ssh server."""

    name: str
    """What the user calls it: an alias of ~/.ssh/config, a name or an address."""
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    """Absolute paths; empty: the default keys."""
    identities_only: bool = False
    """Offer no other keys of the agent."""
    jumps: tuple[SshTarget, ...] = ()
    """Servers to go through, the nearest first."""
    proxy_command: str = ""
    known_hosts: tuple[str, ...] = ()
    """Files; the first is where new keys are added."""
    host_key_name: str = ""
    """HostKeyAlias."""
    accepts_new_keys: bool = False
    """Whether ~/.ssh/config itself says so (StrictHostKeyChecking)."""
    connect_timeout_s: float = _CONNECT_TIMEOUT_S

    @property
    def key_name(self) -> str:
        """The server's name in known_hosts."""
        if self.host_key_name:
            return self.host_key_name
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"

    @property
    def text(self) -> str:
        """For people: user@host:port."""
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}:{self.port}"


def resolve_target(host: str, ssh: Mapping[str, Any], home: Path | None = None) -> SshTarget:
    """Return where `ssh` (the topology's keys) leads; what it leaves out comes from the ssh configuration.

    `host` is the topology's name, for errors. Raises TransportError if the configuration cannot be read or goes in circles.
    """
    config = _config(host, home or Path.home())
    named = str(ssh["host"])
    target = _lookup(host, config, named, user=ssh.get("user"), port=ssh.get("port"))
    if ssh.get("identity_file"):
        path = str(Path(str(ssh["identity_file"])).expanduser())
        target = replace(target, identity_files=(path,))
    if ssh.get("jump"):
        target = replace(target, proxy_command="", jumps=_hops(host, config, str(ssh["jump"]), (named,)))
    return target


def _lookup(
    host: str,
    config: paramiko.SSHConfig,
    name: str,
    *,
    user: str | None = None,
    port: int | None = None,
    seen: tuple[str, ...] = (),
) -> SshTarget:
    import paramiko

    if name in seen:
        raise TransportError(
            host, f"ProxyJump goes in a circle: {' -> '.join((*seen, name))}", fix="correct ~/.ssh/config"
        )
    try:
        found: Mapping[str, Any] = config.lookup(name)
    except (paramiko.SSHException, ImportError, OSError, ValueError) as error:  # `Match exec`, canonical names
        raise TransportError(
            host, f"~/.ssh/config cannot be used for {name}: {error}", fix="correct it, or write `ssh:` out in the file"
        ) from None
    command = str(found.get("proxycommand") or "")
    hops = str(found.get("proxyjump") or "")
    files = f"{found.get('userknownhostsfile', '~/.ssh/known_hosts ~/.ssh/known_hosts2')} {found.get('globalknownhostsfile', '/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2')}"
    timeout = str(found.get("connecttimeout") or "")
    return SshTarget(
        name,
        str(found.get("hostname") or name).strip("[]"),
        port or int(found.get("port") or 22),
        user or str(found.get("user") or getpass.getuser()),
        tuple(str(Path(one.strip('"')).expanduser()) for one in found.get("identityfile", ())),
        str(found.get("identitiesonly", "no")).lower() == "yes",
        _hops(host, config, hops, (*seen, name)) if hops.lower() not in ("", "none") else (),
        "" if command.lower() == "none" else command,
        tuple(str(Path(one.strip('"')).expanduser()) for one in files.split() if one.lower() != "none"),
        str(found.get("hostkeyalias") or ""),
        str(found.get("stricthostkeychecking", "ask")).lower() in ("no", "off", "accept-new"),
        float(timeout) if timeout.isdigit() and int(timeout) else _CONNECT_TIMEOUT_S,
    )


def _hops(host: str, config: paramiko.SSHConfig, text: str, seen: tuple[str, ...]) -> tuple[SshTarget, ...]:
    """Return the servers of a ProxyJump, the nearest first; only the first one's own ProxyJump counts, as in OpenSSH."""
    found: list[SshTarget] = []
    for hop in text.split(","):
        match = _HOP.match(hop.strip())
        if match is None:
            raise TransportError(host, f"`{hop}` is no host to jump through", fix="write [user@]host[:port]")
        port = int(match["port"]) if match["port"] else None
        target = _lookup(host, config, match["host"].strip("[]"), user=match["user"], port=port, seen=seen)
        found += [*target.jumps, target] if not found else [target]
    return tuple(replace(one, jumps=()) for one in found)


def _config(host: str, home: Path) -> paramiko.SSHConfig:
    try:
        return _read_config(home, _stamps(home))
    except OSError as error:
        raise TransportError(
            host, f"cannot read {error.filename}: {error.strerror}", fix="make your ssh configuration readable"
        ) from None


def _stamps(home: Path) -> tuple[float, ...]:
    paths = (home / ".ssh" / "config", Path("/etc/ssh/ssh_config"))
    return tuple(path.stat().st_mtime if path.is_file() else 0.0 for path in paths)


@lru_cache(maxsize=4)
def _read_config(home: Path, _stamps: tuple[float, ...]) -> paramiko.SSHConfig:
    import paramiko

    lines = [*_lines(home / ".ssh" / "config", home / ".ssh", 0), "Host *"]
    lines += _lines(Path("/etc/ssh/ssh_config"), Path("/etc/ssh"), 0)
    config = paramiko.SSHConfig()
    config.parse(io.StringIO("\n".join(lines) + "\n"))
    return config


def _lines(path: Path, folder: Path, depth: int) -> Iterator[str]:
    """Yield a configuration's lines with its Includes in place: paramiko reads none (5.1.0, config.py)."""
    if not path.is_file() or depth > _DEPTH:
        return
    block = "Host *"
    for line in path.read_text(errors="replace").splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() != "include":
            block = line if word.lower() in ("host", "match") else block
            yield line
            continue
        for pattern in rest.split():
            wanted = Path(pattern.strip('"')).expanduser()
            base = wanted if wanted.is_absolute() else folder / wanted
            for found in sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor)))):
                yield block
                yield from _lines(found, folder, depth + 1)
        yield block  # what follows belongs to the block in which the Include stands
