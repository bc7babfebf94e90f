"""The GPU arithmetic: what the layout needs, what the hosts have, and what is wrong with it, in the user's numbers."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from pdctl.plan.model import GpuSum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.facts import Facts
    from pdctl.plan.shapes import RoleShape
    from pdctl.topology.schema import Host, Topology
    from pdctl.topology.source import Path, SourceMap


def gpu_sum(roles: Sequence[RoleShape], share_gpus: int, available: int | None) -> GpuSum:
    """Return the sum over replicas: (P + D) x TP x DP where all roles have one size, else one product for each role.

    2P2D with TP 2, DP 1 -> `(2 + 2) x 2 x 1 = 8`; 2 P of TP 1 and 1 D of TP 4 -> `2 x 1 x 1 + 1 x 4 x 1 = 6`. A factor for PP
    stands last where a replica has more than one stage.
    """
    ranks = sum(role.shape.replicas * role.shape.world for role in roles)
    sizes = {(role.shape.tp, role.shape.dp, role.shape.pp) for role in roles}
    if len(sizes) == 1:
        counts = " + ".join(str(role.shape.replicas) for role in roles)
        text = _product(f"({counts})" if len(roles) > 1 else counts, *sizes.pop())
    else:
        text = " + ".join(
            _product(str(role.shape.replicas), role.shape.tp, role.shape.dp, role.shape.pp) for role in roles
        )
    needed = ceil(ranks / share_gpus)
    formula = f"{text} = {ranks}" if share_gpus == 1 else f"{text} = {ranks} ranks, {share_gpus} to a GPU = {needed}"
    return GpuSum(needed, formula, needed if available is None else available)


def _product(replicas: str, tp: int, dp: int, pp: int) -> str:
    return f"{replicas} x {tp} x {dp}" + (f" x {pp}" if pp > 1 else "")


def host_gpus(topology: Topology, hosts: Sequence[Host], facts: Facts) -> dict[str, tuple[str, ...] | None]:
    """Return each host's GPU ids as the file or NVML gives them; None where nobody said."""
    return {host.name: _ids(topology, host, facts) for host in hosts}


def _ids(topology: Topology, host: Host, facts: Facts) -> tuple[str, ...] | None:
    if topology.engine.device == "cpu":
        return ()
    if isinstance(host.gpus, list):
        return tuple(str(gpu) for gpu in host.gpus)
    if host.gpus is not None:
        return tuple(str(index) for index in range(host.gpus))
    seen = facts.host(host.name).gpus
    return None if seen is None or topology.engine.kind == "sim" else tuple(str(gpu.index) for gpu in seen)


def gpu_problems(
    topology: Topology,
    hosts: Sequence[Host],
    gpus: Mapping[str, tuple[str, ...] | None],
    found: GpuSum,
    source: SourceMap,
) -> list[Problem]:
    """Return what is wrong between what is needed, declared and there."""
    problems: list[Problem] = []
    if topology.gpus is not None and topology.gpus != found.needed:
        problems.append(
            source.problem(
                ("gpus",), f"declared are {topology.gpus} GPUs, but the layout needs {found.formula}",
                f"set gpus: {found.needed}, or change layout, tp or dp",
            )
        )  # fmt: skip
    known = [ids for ids in gpus.values() if ids is not None]
    if len(known) < len(gpus) or topology.engine.device == "cpu":
        return problems
    have = sum(len(ids) for ids in known)
    there = "the hosts have" if len(hosts) > 1 else f"host {hosts[0].name} has"
    count = f"{have} GPU{'' if have == 1 else 's'}"
    if have < found.needed:
        problems.append(
            source.problem(
                _blame(topology),
                f"{there} {count}, but the layout needs {found.formula}",
                f"use a smaller layout or tp, or hosts with {found.needed} GPUs",
            )
        )
    elif have > found.needed and not topology.allow_idle_gpus:
        idle = have - found.needed
        problems.append(
            source.problem(
                _blame(topology), f"{there} {count} and the layout needs {found.formula}: {idle} would be idle",
                "use them with more replicas or tp, list only those to use (gpus: [0, 1, ...]), or set allow_idle_gpus: true",
            )
        )  # fmt: skip
    return problems


def _blame(topology: Topology) -> Path:
    """Return the key that says how many GPUs there are."""
    if len(topology.hosts) == 1:
        return ("hosts", 0, "gpus")
    return ("hosts",) if topology.hosts else ("layout",)
