"""Rules that need more than one key of the file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdctl.topology.addresses import address_fault, is_loopback_interface, only_here
from pdctl.topology.names import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import Path
    from pdctl.topology.written import Written

EPHEMERAL_FROM = 32768
"""Linux's ip_local_port_range begins here by default."""
_WHY_EPHEMERAL = f"Linux hands out ports from {EPHEMERAL_FROM} on to outgoing connections, so one there may be taken"
_ROLES = ("prefill", "decode", "aggregated")
_ROLE_OF_KEY = {"prefill": "producer", "decode": "consumer", "aggregated": "aggregated"}
_DATA_ADDRESS = "write its address in the network of the cluster, such as 10.0.0.1"
_ADD_ADDRESS = "add its address in the network of the cluster, such as address: 10.0.0.1"


@dataclass(frozen=True)
class Broken:
    """A rule that the file breaks."""

    path: Path
    what: str
    fix: str
    rests_on: tuple[Path, ...] = ()
    """Other keys that it was concluded from; if one of them is itself wrong, nothing can be concluded."""


def broken_rules(topology: Topology, written: Written) -> Iterator[Broken]:
    """Yield everything wrong in a topology whose keys are right one by one."""
    yield from _roles(topology)
    yield from _hosts(topology, written)
    yield from _host_names(topology, written)
    yield from _placement(topology, written)
    yield from _ports(topology, written)
    yield from _proxy(topology, written)


def _roles(topology: Topology) -> Iterator[Broken]:
    producers, consumers = topology.prefill.replicas or 0, topology.decode.replicas or 0
    counts: tuple[Path, ...] = (("layout",), *((role, "replicas") for role in _ROLES))
    if not producers and not consumers and not topology.aggregated.replicas:
        what = "nothing to run: there is no prefill, decode or aggregated replica"
        yield Broken(("layout",), what, "write a layout such as `layout: 1P1D`", counts)
    elif bool(producers) != bool(consumers):
        there, lacking = ("prefill", "decode") if producers else ("decode", "prefill")
        why = "nobody would take the KV cache" if producers else "nobody would make the KV cache"
        what = f"{there} replicas without {lacking} replicas: {why}"
        fix = f"set {lacking}.replicas, or run plain replicas with aggregated.replicas"
        yield Broken((lacking, "replicas"), what, fix, counts)
    if (producers or consumers) and topology.connector is None:
        what = "missing: prefill and decode need a KV connector"
        yield Broken(("connector",), what, "add `connector: nixl` (or p2p_nccl, up to vLLM 0.23)", counts)


def _hosts(topology: Topology, written: Written) -> Iterator[Broken]:
    names: dict[str, int] = {}
    addresses: dict[str, str] = {}
    for index, host in enumerate(topology.hosts):
        path: Path = ("hosts", index)
        shown = written.text((*path, "name"), host.name)
        if host.name in names:
            what = f"host `{shown}` stands twice, first as hosts[{names[host.name]}]"
            yield Broken((*path, "name"), what, "give each host a name of its own")
        names.setdefault(host.name, index)
        twice = _twice([str(gpu) for gpu in host.gpus]) if isinstance(host.gpus, list) else None
        if twice is not None and isinstance(host.gpus, list):
            at: Path = (*path, "gpus", twice)
            yield Broken(at, f"GPU {written.show(at)} of host {shown} stands twice", "list each GPU once")
        yield from _negative(host.gpus, (*path, "gpus"), written)
        fault = _address_rule(topology, host, shown, path, written)
        if fault is not None:
            yield fault
        elif host.address is not None:
            other = addresses.setdefault(host.address.lower(), shown)
            if other != shown:
                what = f"hosts {other} and {shown} have one address, {written.show((*path, 'address'))}"
                yield Broken((*path, "address"), what, "give each its own: two entries of one machine are one host")
        if len(topology.hosts) > 1 and is_loopback_interface(host.interface):
            what = f"host {shown}: `lo` is the loopback interface, through which no other host can be reached"
            yield Broken((*path, "interface"), what, "name the interface of its data network, such as eth0")


def _address_rule(topology: Topology, host: Host, shown: str, path: Path, written: Written) -> Broken | None:
    several = len(topology.hosts) > 1
    if host.address is None:
        if several:
            what = f"host {shown} has no `address`: the other hosts could not connect to it"
            return Broken((*path, "address"), what, _ADD_ADDRESS)
        if host.ssh is not None:
            what = f"host {shown} is reached by ssh but has no `address` for its engines to listen on"
            return Broken((*path, "address"), what, f"{_ADD_ADDRESS}; 127.0.0.1 will do for a single host")
        return None
    at: Path = (*path, "address")
    address = written.show(at)
    reason = only_here(host.address)
    if reason is not None and several:
        what = f"host {shown}: {address} {reason.why}, so no other host could connect to it"
        return Broken(at, what, _DATA_ADDRESS)
    if reason is not None:
        return (
            Broken(at, f"host {shown}: {address} {reason.why}: nothing can connect to it", "write 127.0.0.1")
            if reason.wildcard
            else None
        )
    fault = address_fault(host.address)
    return Broken(at, f"host {shown}: {address} {fault}", _DATA_ADDRESS) if fault else None


def _host_names(topology: Topology, written: Written) -> Iterator[Broken]:
    """Names of hosts that stand elsewhere in the file."""
    uses: list[tuple[Path, str]] = []
    for role in _ROLES:
        names: Sequence[str] = getattr(topology, role).hosts
        uses += [((role, "hosts", index), name) for index, name in enumerate(names)]
        twice = _twice(names)
        if twice is not None:
            at: Path = (role, "hosts", twice)
            yield Broken(at, f"host {written.show(at)} stands twice", "name each host once")
    uses += [(("placement", index, "host"), pin.host) for index, pin in enumerate(topology.placement)]
    if topology.proxy.host is not None:
        uses.append((("proxy", "host"), topology.proxy.host))
    known = [written.text(("hosts", index, "name"), host.name) for index, host in enumerate(topology.hosts)]
    fix = f"hosts of this file: {', '.join(known)}" if known else "add it under `hosts`, or leave it out"
    names_known = {host.name for host in topology.hosts} or {"local"}
    for path, name in uses:
        if name not in names_known:
            yield Broken(path, f"there is no host {written.show(path)}", fix, (("hosts",),))


def _placement(topology: Topology, written: Written) -> Iterator[Broken]:
    counts = {_ROLE_OF_KEY[role]: getattr(topology, role).replicas or 0 for role in _ROLES}
    rests: tuple[Path, ...] = (("layout",), *((role, "replicas") for role in _ROLES))
    pinned: dict[str, int] = {}
    for index, pin in enumerate(topology.placement):
        path: Path = ("placement", index)
        name = full_name(pin.instance)
        role, _, ordinal = name.rpartition("-")
        shown = written.show((*path, "instance"))
        if name == "proxy":
            yield Broken((*path, "instance"), "the proxy is not pinned here", "write `proxy: {host: ...}`")
        elif role not in counts or not re.fullmatch(r"0|[1-9][0-9]{0,8}", ordinal) or int(ordinal) >= counts[role]:
            yield Broken((*path, "instance"), f"there is no instance {shown} in this layout", _instances(counts), rests)
        elif name in pinned:
            alias = "" if pin.instance == name else f" (written {shown})"
            what = f"{name}{alias} is pinned twice, first as placement[{pinned[name]}]"
            yield Broken(path, what, "keep one of them")
        pinned.setdefault(name, index)
        twice = _twice([str(gpu) for gpu in pin.gpus or ()])
        if twice is not None:
            at: Path = (*path, "gpus", twice)
            yield Broken(at, f"GPU {written.show(at)} stands twice in one pin", "list each GPU once")
        yield from _negative(pin.gpus, (*path, "gpus"), written)


def _ports(topology: Topology, written: Written) -> Iterator[Broken]:
    base, size = topology.ports.base, topology.ports.size
    base_path, size_path = ("ports", "base"), ("ports", "size")
    if base < 1024:
        what = f"{written.show(base_path, base)} is a privileged port: only root may listen below 1024"
        yield Broken(base_path, what, "use 1024 or more, such as 20000")
    if base >= EPHEMERAL_FROM:
        what = f"{written.show(base_path, base)} is too high: {_WHY_EPHEMERAL}"
        yield Broken(base_path, what, f"use a base with base + size <= {EPHEMERAL_FROM}, such as 20000")
    elif base + size > EPHEMERAL_FROM:
        at = size_path if written.has(size_path) else base_path
        first, count = written.show(base_path, base), written.show(size_path, size)
        shown = f"{count} ports from {first} on reach past {EPHEMERAL_FROM - 1}"
        fix = f"use base + size <= {EPHEMERAL_FROM}, such as base: 20000, size: 2000"
        yield Broken(at, f"{shown}: {_WHY_EPHEMERAL}", fix, (base_path, size_path))


def _proxy(topology: Topology, written: Written) -> Iterator[Broken]:
    proxy = topology.proxy
    port_path: Path = ("proxy", "port")
    if proxy.port >= EPHEMERAL_FROM and proxy.kind != "none":
        what = f"{written.show(port_path, proxy.port)} is too high: {_WHY_EPHEMERAL}"
        yield Broken(port_path, what, f"use one below {EPHEMERAL_FROM}, such as 8000")
    bind_path: Path = ("proxy", "bind")
    fault = None if only_here(proxy.bind) else address_fault(proxy.bind)
    if fault:
        yield Broken(
            bind_path, f"{written.show(bind_path, proxy.bind)} {fault}", "write 127.0.0.1, 0.0.0.0 or an address"
        )
    if proxy.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", proxy.api_key_env):
        what = "this is no name of an environment variable, and a key itself must not stand here"
        yield Broken(("proxy", "api_key_env"), what, "name the variable that holds the key, such as PDCTL_API_KEY")


def _negative(gpus: object, path: Path, written: Written) -> Iterator[Broken]:
    for index, gpu in enumerate(gpus if isinstance(gpus, list) else ()):
        at: Path = (*path, index)
        if isinstance(gpu, int) and gpu < 0:
            yield Broken(at, f"{written.show(at)} is no GPU", "use ids from 0 on, or UUIDs")
        elif gpu == "":
            yield Broken(at, "a GPU without an id", "write its id or UUID, or remove it")


def _twice(values: Sequence[str]) -> int | None:
    """Return the index of the first value that stood before."""
    return next((index for index, value in enumerate(values) if value in values[:index]), None)


def _instances(counts: dict[str, int]) -> str:
    each = [f"{role}-0 to {role}-{count - 1}" if count > 1 else f"{role}-0" for role, count in counts.items() if count]
    return f"instances: {', '.join(each)}" if each else "write a layout first"
