"""Rules that need more than one key of the file."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from pdctl.topology.names import full_name
from pdctl.topology.schema import Topology
from pdctl.topology.source import Path

Found = tuple[Path, str, str]

_OWNED_ENV = {
    "VLLM_HOST_IP": "`hosts[].address` sets it for each host",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "`hosts[].address` sets it for each host; another value makes each decode talk to itself",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "pdctl chooses it from `ports`",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "pdctl chooses it from `ports`",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "pdctl sets it where the connector needs it, on both roles",
    "VLLM_PORT": "pdctl chooses ports from `ports`",
    "CUDA_VISIBLE_DEVICES": "`hosts[].gpus` and `placement` say which GPUs an instance gets",
    "NCCL_HOSTID": "pdctl sets it where ranks share a GPU",
    "PDCTL_TREE": "pdctl marks its processes with it",
    "PDCTL_INSTANCE": "pdctl sets it",
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def broken_rules(topology: Topology) -> Iterator[Found]:
    """Yield (path, what, fix) of everything wrong in a topology whose keys are right one by one."""
    yield from _roles(topology)
    yield from _hosts(topology)
    yield from _placement(topology)
    yield from _environment(topology)
    yield from _ports(topology)
    if topology.proxy.api_key_env and not _VARIABLE.fullmatch(topology.proxy.api_key_env):
        yield ("proxy", "api_key_env"), "this is no name of an environment variable (a key itself must not stand here)", "name the variable that holds the key, such as PDCTL_API_KEY"


def _roles(topology: Topology) -> Iterator[Found]:
    producers, consumers = topology.prefill.replicas or 0, topology.decode.replicas or 0
    aggregated = topology.aggregated.replicas or 0
    if not producers and not consumers and not aggregated:
        yield ("layout",), "nothing to run: no prefill, decode or aggregated replica", "write a layout such as 1P1D"
    elif bool(producers) != bool(consumers):
        there, lacking = ("prefill", "decode") if producers else ("decode", "prefill")
        yield (lacking,), f"{there} replicas without {lacking} replicas: nobody would take the KV cache", f"add {lacking}.replicas, or use aggregated.replicas"
    if (producers or consumers) and topology.connector is None:
        yield ("connector",), "missing: prefill and decode need a KV connector", "add `connector: nixl` (or p2p_nccl)"
    names = {host.name for host in topology.hosts}
    for role in ("prefill", "decode", "aggregated"):
        for index, name in enumerate(getattr(topology, role).hosts):
            if name not in names:
                yield (role, "hosts", index), f"no host `{name}`", _known_hosts(topology)
    if topology.proxy.host is not None and topology.proxy.host not in names:
        yield ("proxy", "host"), f"no host `{topology.proxy.host}`", _known_hosts(topology)


def _hosts(topology: Topology) -> Iterator[Found]:
    seen: dict[str, int] = {}
    addresses: dict[str, str] = {}
    several = len(topology.hosts) > 1
    for index, host in enumerate(topology.hosts):
        path: Path = ("hosts", index)
        if host.name in seen:
            yield (*path, "name"), f"host `{host.name}` stands twice", "give each host a name of its own"
        seen.setdefault(host.name, index)
        ids = [str(gpu) for gpu in host.gpus] if isinstance(host.gpus, list) else []
        twice = next((gpu for gpu in ids if ids.count(gpu) > 1), None)
        if twice is not None:
            yield (*path, "gpus"), f"GPU {twice} of host {host.name} stands twice", "list each GPU once"
        if host.address is None:
            if several or host.ssh is not None:
                yield path, f"host {host.name} has no `address`: the other hosts could not connect to it", "add the address of its data network, such as address: 10.0.0.1"
            continue
        reason = _only_here(host.address)
        if reason and several:
            yield (*path, "address"), f"host {host.name}: {host.address} {reason}, so no other host could connect to it", "write the address of its data network, such as 10.0.0.1"
        elif reason == _WILDCARD:
            yield (*path, "address"), f"host {host.name}: {host.address} {reason}", "write 127.0.0.1 or the address of its network"
        other = addresses.setdefault(host.address, host.name)
        if other != host.name:
            yield (*path, "address"), f"hosts {other} and {host.name} have the same address {host.address}", "give each its own; two entries for one machine are one host"


_WILDCARD = "means every address and is nothing to connect to"


def _only_here(address: str) -> str:
    """Return why nobody else can connect to an address, or nothing."""
    if address.lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return "means each machine itself"
    try:
        ip = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return ""
    if ip.is_unspecified:
        return _WILDCARD
    return "is the loopback address, which means each machine itself" if ip.is_loopback else ""


def _placement(topology: Topology) -> Iterator[Found]:
    counts = {"producer": topology.prefill.replicas, "consumer": topology.decode.replicas, "aggregated": topology.aggregated.replicas}
    names = {host.name for host in topology.hosts} or {"local"}
    pinned: dict[str, int] = {}
    for index, pin in enumerate(topology.placement):
        path: Path = ("placement", index)
        name = full_name(pin.instance)
        role, _, ordinal = name.rpartition("-")
        if role not in counts or not ordinal.isdigit() or int(ordinal) >= (counts[role] or 0):
            known = ", ".join(f"{one}-0 to {one}-{count - 1}" if count > 1 else f"{one}-0" for one, count in counts.items() if count)
            yield (*path, "instance"), f"no instance `{pin.instance}` in this layout", f"instances: {known}"
        elif name in pinned:
            alias = "" if pin.instance == name else f" (written {pin.instance})"
            yield path, f"{name}{alias} is pinned twice, first as placement[{pinned[name]}]", "keep one of them"
        pinned.setdefault(name, index)
        if pin.host not in names:
            yield (*path, "host"), f"no host `{pin.host}`", _known_hosts(topology)


def _environment(topology: Topology) -> Iterator[Found]:
    sections: list[tuple[Path, object]] = [((key, "env"), getattr(topology, key).env) for key in ("engine", "prefill", "decode", "aggregated")]
    sections += [(("hosts", index, "env"), host.env) for index, host in enumerate(topology.hosts)]
    for path, env in sections:
        for name in env:  # type: ignore[attr-defined]
            if name in _OWNED_ENV:
                yield (*path, name), f"pdctl sets {name} itself", f"remove it; {_OWNED_ENV[name]}"
            elif not _VARIABLE.fullmatch(name):
                yield (*path, name), "this is no name of an environment variable", "use letters, digits and _"


def _ports(topology: Topology) -> Iterator[Found]:
    if topology.ports.base < 1024:
        yield ("ports", "base"), f"{topology.ports.base} is a privileged port", "use 1024 or more, such as 20000"


def _known_hosts(topology: Topology) -> str:
    names = ", ".join(host.name for host in topology.hosts)
    return f"hosts of this file: {names}" if names else "add it under `hosts`"
