"""Which replica runs on which host and GPUs: pins first, then a packing that finds a fit if there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdctl.topology.names import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.shapes import RoleShape
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import SourceMap

_MOST_STEPS = 50_000
"""Bound of the search; 64 replicas on 32 hosts need some hundreds where a fit exists."""

_MOST_NAMED = 16
"""Hosts named in a message."""


@dataclass(frozen=True)
class Placed:
    """Where one replica runs."""

    host: str
    gpus: tuple[str, ...]


class _Room:
    """Free slots of one host: each GPU has `share_gpus` of them. Both sums are kept, since the search asks for them all the time."""

    def __init__(self, slots: dict[str, int]) -> None:
        self.slots = slots
        self.free = sum(slots.values())
        self.open_gpus = sum(1 for count in slots.values() if count)

    def fits(self, need: int) -> bool:
        return self.open_gpus >= need

    def take(self, need: int) -> tuple[str, ...]:
        """Take one slot of each of `need` GPUs, the emptiest first, in the host's order."""
        best = set(sorted(self.slots, key=lambda gpu: -self.slots[gpu])[:need])
        chosen = tuple(gpu for gpu in self.slots if gpu in best)
        self.take_these(chosen)
        return chosen

    def take_these(self, gpus: Sequence[str]) -> None:
        for gpu in gpus:
            self.slots[gpu] -= 1
            self.open_gpus -= not self.slots[gpu]
        self.free -= len(gpus)

    def give_back(self, gpus: Sequence[str]) -> None:
        for gpu in gpus:
            self.open_gpus += not self.slots[gpu]
            self.slots[gpu] += 1
        self.free += len(gpus)


@dataclass
class _Search:
    rooms: dict[str, _Room]
    counted: bool
    """False without GPUs: replicas are then dealt out to the hosts in turn."""
    placed: dict[str, Placed] = field(default_factory=dict)
    steps: int = 0


def place(
    topology: Topology,
    roles: Sequence[RoleShape],
    hosts: Sequence[Host],
    gpus: Mapping[str, tuple[str, ...]],
    source: SourceMap,
) -> tuple[dict[str, Placed], list[Problem]]:
    """Return every replica's place, or the problems. `gpus`: ids of each host; no ids anywhere: nothing is counted."""
    counted = any(gpus.values())
    search = _Search({host.name: _Room(dict.fromkeys(gpus[host.name], topology.share_gpus)) for host in hosts}, counted)
    by_name = {name: role for role in roles for name in role.names}
    problems = _pin(topology, by_name, search, source)
    if problems:
        return {}, problems
    order = sorted((name for name in by_name if name not in search.placed), key=lambda name: -by_name[name].shape.world)
    allowed = {name: _allowed(topology, by_name[name], name, hosts) for name in order}
    if not counted:
        for name in by_name:
            if name not in search.placed:
                search.placed[name] = Placed(_least_used(search, allowed[name]), ())
        return search.placed, []
    for role in roles:
        biggest = max((len(gpus[host]) for name in role.names for host in allowed.get(name, ())), default=None)
        if biggest is not None and role.shape.world > biggest:
            problems.append(
                source.problem(
                    source.written((role.key, "tp"), ("tp",)),
                    f"no host can hold a replica of {role.shape.world} GPUs: the largest has {biggest}, and a replica cannot span hosts",
                    f"use a tp (x pp x dp) of at most {biggest}, or a host with {role.shape.world} GPUs",
                )
            )
    if problems:
        return {}, problems
    if _fit(search, order, by_name, allowed):
        return search.placed, []
    sizes = ", ".join(
        f"{role.shape.replicas} {role.role}{'s' if role.shape.replicas > 1 else ''} of {role.shape.world}"
        for role in roles
    )
    rooms = ", ".join(f"{name} {len(ids)}" for name, ids in list(gpus.items())[:_MOST_NAMED])
    rooms += f" and {len(gpus) - _MOST_NAMED} more hosts" if len(gpus) > _MOST_NAMED else ""
    return {}, [
        source.problem(
            ("hosts",),
            f"the replicas do not fit the hosts: GPUs needed {sizes}; there {rooms}",
            "pin some with `placement`, or change tp or the hosts",
        )
    ]


def _allowed(topology: Topology, role: RoleShape, name: str, hosts: Sequence[Host]) -> tuple[str, ...]:
    pinned = [pin.host for pin in topology.placement if full_name(pin.instance) == name]
    return tuple(pinned or role.hosts or (host.name for host in hosts))


def _pin(topology: Topology, by_name: Mapping[str, RoleShape], search: _Search, source: SourceMap) -> list[Problem]:
    """Take the pinned GPUs. A pin to a host without GPUs named is left to the packing, on that host only."""
    problems = []
    for index, pin in enumerate(topology.placement):
        name = full_name(pin.instance)
        if pin.gpus is None or name not in by_name:
            continue
        path = ("placement", index, "gpus")
        ids = tuple(str(gpu) for gpu in pin.gpus)
        slots = search.rooms[pin.host].slots
        need = by_name[name].shape.world
        unknown = [gpu for gpu in ids if gpu not in slots]
        taken = [gpu for gpu in ids if gpu in slots and (slots[gpu] < 1 or ids.count(gpu) > 1)]
        if len(ids) != need:
            problems.append(source.problem(path, f"{name} needs {need} GPUs, {len(ids)} are pinned", f"pin {need}"))
        elif unknown:
            problems.append(
                source.problem(
                    path, f"host {pin.host} has no GPU {', '.join(unknown)}", f"it has {', '.join(slots) or 'none'}"
                )
            )
        elif taken:
            problems.append(
                source.problem(
                    path,
                    f"GPU {', '.join(dict.fromkeys(taken))} of host {pin.host} is pinned twice",
                    "pin each GPU once, or set share_gpus",
                )
            )
        else:
            search.rooms[pin.host].take_these(ids)
            search.placed[name] = Placed(pin.host, ids)
    return problems


def _least_used(search: _Search, hosts: Sequence[str]) -> str:
    used = [placed.host for placed in search.placed.values()]
    return min(hosts, key=lambda host: (used.count(host), hosts.index(host)))


def _fit(
    search: _Search, order: Sequence[str], by_name: Mapping[str, RoleShape], allowed: Mapping[str, tuple[str, ...]]
) -> bool:
    """Place the largest first, each on the host it fills best; go back where that leads nowhere. No recursion: replicas are many."""
    choices: list[Iterator[str]] = []
    while len(choices) < len(order):
        choices.append(_by_fill(search, by_name[order[len(choices)]].shape.world, allowed[order[len(choices)]]))
        while not _take_next(search, order[len(choices) - 1], by_name, choices[-1]):
            choices.pop()
            if not choices or search.steps > _MOST_STEPS:
                return False
            _undo(search, order[len(choices) - 1])
    return True


def _by_fill(search: _Search, need: int, hosts: Sequence[str]) -> Iterator[str]:
    fitting = [host for host in hosts if search.rooms[host].fits(need)]
    return iter(sorted(fitting, key=lambda host: search.rooms[host].free))


def _take_next(search: _Search, name: str, by_name: Mapping[str, RoleShape], hosts: Iterator[str]) -> bool:
    host = next(hosts, None)
    search.steps += 1
    if host is None or search.steps > _MOST_STEPS:
        return False
    search.placed[name] = Placed(host, search.rooms[host].take(by_name[name].shape.world))
    return True


def _undo(search: _Search, name: str) -> None:
    gone = search.placed.pop(name)
    search.rooms[gone.host].give_back(gone.gpus)
