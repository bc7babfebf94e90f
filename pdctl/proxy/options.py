"""The proxy's command line."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from pdctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROLES = ("producer", "consumer", "aggregated")
CONNECTORS = ("nixl", "p2p_nccl", "none")
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_KEYS = ("kv",)


@dataclass(frozen=True)
class Target:
    """One engine of the static list."""

    name: str
    role: str
    """`producer`, `consumer` or `aggregated`."""
    url: str
    """`http://host:port`, without a path."""
    host: str
    port: int
    kv_address: str | None = None
    """`host:port` of rank 0's KV endpoint (P2pNccl)."""


@dataclass(frozen=True)
class Options:
    """Everything the proxy is told."""

    connector: str
    """`nixl`, `p2p_nccl` or `none` (aggregated replicas only)."""
    targets: tuple[Target, ...]
    bind: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port; the start line says which."""
    registration: tuple[str, int] | None = None
    """Where P2pNccl engines register."""
    api_key: str | None = None
    """Value of the variable that `--api-key-env` names."""
    model: str | None = None
    max_body: int = 128 << 20
    """Bytes of a request's body."""
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0
    """Longest silence of an engine within one leg; not a total."""
    retries: int = 1
    fallback: str = "never"
    """`never`, or `decode`: let a consumer prefill alone when no producer can."""

    def __repr__(self) -> str:
        return f"Options(connector={self.connector!r}, targets={self.targets!r}, bind={self.bind!r}, port={self.port})"

    @property
    def dynamic(self) -> bool:
        """Whether the engines come from registrations instead of a list."""
        return self.registration is not None and not self.targets


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix="see `pdctl proxy -- --help`")


def parse_options(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Options:
    """Return the options of a command line; raises UsageError, and SystemExit(0) after `--help`."""
    given = _parser().parse_args(list(argv))
    environ = os.environ if environ is None else environ
    options = Options(
        connector=given.connector,
        targets=_targets(given),
        bind=given.bind.strip("[]"),
        port=_port(str(given.port), "--port", lowest=0),
        registration=_address(given.registration, "--registration") if given.registration else None,
        api_key=_api_key(given.api_key_env, environ),
        model=given.model,
        max_body=parse_size(given.max_body),
        connect_timeout_s=given.connect_timeout,
        idle_timeout_s=given.idle_timeout,
        retries=given.retries,
        fallback=given.fallback,
    )
    _check(options)
    return options


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `128MiB`; raises UsageError."""
    found = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    if not found or found[2].lower() not in _UNITS:
        raise UsageError(f"`{text}` is not a size", fix="write a whole number with KiB, MiB or GiB")
    return int(found[1]) * _UNITS[found[2].lower()]


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`; raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not colon or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host) or not 0 < number < 65536:
        raise ValueError("not host:port")
    return host, number


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pdctl proxy", description="Send each request to a producer, then to a consumer.")
    add = parser.add_argument
    add("--connector", choices=CONNECTORS, required=True)
    for role in ROLES:
        add(f"--{role}", action="append", default=[], metavar="[NAME=]URL[,kv=HOST:PORT]")
    add("--bind", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="0 takes a free one (%(default)s)")
    add("--registration", metavar="HOST:PORT", help="take P2pNccl registrations here")
    add("--api-key-env", metavar="NAME", help="variable with the key that clients must send")
    add("--model", help="served model name, for logs and metrics")
    add("--max-body", default="128MiB", help="largest request body (%(default)s)")
    add("--connect-timeout", type=_seconds, default=5.0, metavar="S")
    add("--idle-timeout", type=_seconds, default=600.0, metavar="S", help="longest silence within a leg (%(default)s)")
    add("--retries", type=int, choices=range(11), default=1, metavar="N", help="on other instances (%(default)s)")
    add("--fallback", choices=("never", "decode"), default="never", help="let a consumer prefill alone (%(default)s)")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _targets(given: argparse.Namespace) -> tuple[Target, ...]:
    targets = [_target(role, number, text) for role in ROLES for number, text in enumerate(getattr(given, role))]
    for what, values in (("name", [t.name for t in targets]), ("URL", [t.url for t in targets])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UsageError(f"the {what} `{twice}` is given twice", fix=f"give every engine its own {what}")
    return tuple(targets)


def _target(role: str, number: int, text: str) -> Target:
    named = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(?=https?:)", text)
    name = named[1] if named else f"{role}-{number}"
    url, *extras = text[named.end() if named else 0 :].split(",")
    host, port, url = _url(url, f"--{role}")
    found = dict(extra.partition("=")[::2] for extra in extras)
    unknown = sorted(set(found) - set(_KEYS))
    if unknown:
        raise UsageError(f"unknown key `{unknown[0]}`", where=f"--{role} {text}", fix="write kv=HOST:PORT")
    if "kv" in found:
        _address(found["kv"], f"--{role} {text}")
    return Target(name, role, url, host, port, found.get("kv"))


def _url(text: str, where: str) -> tuple[str, int, str]:
    fix = "write http://HOST:PORT"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise UsageError(f"`{text}` is not a URL", where=where, fix=fix) from error
    if parts.scheme != "http" or not host or parts.path.strip("/") or parts.query or parts.username:
        raise UsageError(f"`{text}` is not the URL of an engine", where=where, fix=fix)
    shown = f"[{host}]" if ":" in host else host
    return host, port, f"http://{shown}:{port}"


def _address(text: str, where: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise UsageError(f"`{text}` is not an address", where=where, fix="write HOST:PORT") from error


def _port(text: str, where: str, lowest: int) -> int:
    if not lowest <= int(text) < 65536:
        raise UsageError(f"`{text}` is not a port", where=where, fix="use 1 to 65535")
    return int(text)


def _api_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    key = environ.get(name, "")
    if not key:
        # An unset variable must not open the front to everybody.
        raise UsageError(f"the variable `{name}` is not set", where="--api-key-env", fix=f"export {name}=...")
    return key


def _check(options: Options) -> None:
    count = {role: sum(target.role == role for target in options.targets) for role in ROLES}
    pd = count["producer"] + count["consumer"]
    if options.connector == "none" and (pd or options.registration):
        raise UsageError(
            "producers and consumers need a connector", where="--connector none", fix="name nixl or p2p_nccl"
        )
    if not options.targets and options.registration is None:
        raise UsageError("no engine is named", fix="give --producer and --consumer, or --aggregated, or --registration")
    if pd and not (count["producer"] and count["consumer"]):
        missing = "producer" if not count["producer"] else "consumer"
        raise UsageError(f"there is no {missing}", fix=f"give at least one --{missing}")
    if options.registration is not None and options.connector != "p2p_nccl":
        raise UsageError("only P2pNccl engines register", where="--registration", fix="use --connector p2p_nccl")
    for target in options.targets:
        if options.connector == "p2p_nccl" and target.role != "aggregated" and target.kv_address is None:
            raise UsageError(
                "P2pNccl needs the address of its KV endpoint",
                where=f"--{target.role} {target.name}",
                fix=f"write {target.name}={target.url},kv=HOST:PORT",
            )
