"""Judge what hosts said about themselves before anything starts (pdctl/probe.py). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.errors import Finding
from pdctl.plan.engine import UTILIZATION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pdctl.plan.model import InstancePlan, Plan

_CLOCK_S = 1.0
_NOFILE = 4096
"""Open files: an engine holds a few hundred, a proxy two for each request."""
_SHM = 1 << 30
"""Bytes of /dev/shm that NCCL and vLLM's message queues of one host get by with; docker's default is 64 MiB."""
_DISK_FULL = 16 << 20
_PYTHON = (3, 9)
_DRIVER_OF_CUDA = {"11": 450, "12": 525, "13": 580}
_LOCAL = ("127.0.0.1", "::1", "localhost")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


@dataclass(frozen=True)
class HostAnswer:
    """What a host's probe said."""

    data: Mapping[str, Any]
    asked_at: float
    """Unix time here when it was asked, and when it had answered."""
    answered_at: float

    @property
    def latency_s(self) -> float:
        return self.answered_at - self.asked_at

    @property
    def clock_ahead_s(self) -> float:
        """How far the host's clock is ahead of ours, as well as the round trip lets it be known."""
        return float(self.data["now"]) - (self.asked_at + self.answered_at) / 2


def addresses_on(plan: Plan, host: str) -> list[str]:
    """Return the addresses that instances of a host bind."""
    found = [one.address for one in plan.instances if one.host == host and one.address not in _WILDCARDS]
    return list(dict.fromkeys(found))


def judge_hosts(
    plan: Plan,
    interfaces: Mapping[str, str | None],
    answers: Mapping[str, HostAnswer],
    *,
    serving: Collection[str] = (),
) -> list[Finding]:
    """Return what stands in the way (`blocker`) or is worth a word, host by host.

    `interfaces`: host -> the interface that the file names. `serving`: hosts whose GPUs hold the cluster's own engines.
    """
    findings: list[Finding] = []
    for host, answer in answers.items():
        findings += _address(plan, host, answer.data)
        findings += _interface(host, interfaces.get(host), answer.data)
        findings += _ports(plan, host, answer.data)
        findings += _surroundings(plan, host, answer)
        findings += _room(plan, host, answer.data)
        if plan.device == "gpu" and plan.engine_kind == "vllm":
            findings += _gpus(plan, host, answer.data, serving=host in serving)
    return [*findings, *_models(plan, answers)]


def judge_peers(plan: Plan, dialled: Mapping[str, Mapping[str, str | None]]) -> list[Finding]:
    """Return who cannot reach whom; `dialled`: host -> "address port" of a peer -> None or what happened instead."""
    findings = []
    for host, found in dialled.items():
        for where, problem in found.items():
            if problem is None or "something else listens" in problem:
                continue
            address, port = where.rsplit(" ", 1)
            peer = next(one.host for one in plan.instances if one.address == address)
            what = f"cannot reach {address}:{port} on {peer}: {problem}"
            fix = f"check `address` of {peer}, the route from {host}, and that a firewall lets the ports from `ports.base` on through"
            findings.append(Finding(host, "peers", what, fix))
    return findings


def _address(plan: Plan, host: str, data: Mapping[str, Any]) -> Iterator[Finding]:
    if tuple(int(part) for part in data["python"].split(".")[:2]) < _PYTHON:
        yield Finding(host, "python", f"python3 is {data['python']}", "install Python 3.9 or newer as python3")
    own = [one for one in data["hostname_addresses"] if not one.startswith("127.") and one != "::1"]
    for address, problem in data["addresses"].items():
        if problem:
            has = f"; its name stands for {', '.join(own)}" if own else ""
            yield Finding(
                host, "address", f"{address} is not this host's ({problem}){has}", "correct the host's `address`"
            )
    if len(plan.hosts) > 1 and data["hostname_addresses"] and not own:
        name, address = data["hostname"], data["hostname_addresses"][0]
        yield Finding(
            host, "hostname", f"its own name {name} is {address} here, which is no address for peers",
            f"remove {name} from the loopback line of /etc/hosts, in case a library asks for it", blocker=False,
        )  # fmt: skip


def _interface(host: str, named: str | None, data: Mapping[str, Any]) -> Iterator[Finding]:
    if named is None:
        return
    state = data["interfaces"].get(named)
    if state is None:
        yield Finding(host, "interface", f"there is no {named}", f"choose one of {', '.join(data['known_interfaces'])}")
    elif state == "down":
        yield Finding(host, "interface", f"{named} is down", f"bring it up: `ip link set {named} up`")


def _ports(plan: Plan, host: str, data: Mapping[str, Any]) -> Iterator[Finding]:
    if not data["ephemeral"]:
        return
    low, high = data["ephemeral"]
    ports = [
        port
        for one in plan.instances
        if one.host == host
        for span in one.ports.values()
        for port in range(span.first, span.last + 1)
        if low <= port <= high
    ]
    if ports:
        which = str(min(ports)) if len(ports) == 1 else f"{min(ports)}-{max(ports)}"
        yield Finding(
            host, "ports", f"planned port {which} lies where the kernel takes ports for outgoing connections ({low}-{high})",
            f"set `ports.base` below {low}, or net.ipv4.ip_local_reserved_ports={which}", blocker=False,
        )  # fmt: skip


def _surroundings(plan: Plan, host: str, answer: HostAnswer) -> Iterator[Finding]:
    data = answer.data
    proxies = {name.lower(): value for name, value in data["proxies"].items()}
    through = proxies.get("http_proxy") or proxies.get("all_proxy")
    excepted = [one.strip().lstrip(".") for one in proxies.get("no_proxy", "").split(",") if one.strip()]
    caught = [one.address for one in plan.hosts if one.address not in _LOCAL and not _excepted(one.address, excepted)]
    if through and caught and len(plan.hosts) > 1:
        yield Finding(
            host, "proxy", f"http_proxy={through} would catch traffic to {', '.join(caught)}", f"add them to no_proxy: `env: {{no_proxy: \"{','.join(caught)}\"}}`",
            blocker=False,
        )  # fmt: skip
    ahead = answer.clock_ahead_s
    if abs(ahead) > _CLOCK_S + answer.latency_s / 2:
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            host, "clock", f"its clock is {abs(ahead):.1f} s {way} this machine's", "run an NTP client on both; logs are merged by time", blocker=False,
        )  # fmt: skip
    if data["nofile"] is not None and data["nofile"] < _NOFILE:
        yield Finding(
            host,
            "limits",
            f"only {data['nofile']} open files are allowed",
            f"raise `ulimit -n` to {_NOFILE} or more",
            blocker=False,
        )
    if data["memlock"] is not None and data["rdma"]:
        yield Finding(
            host, "limits", f"only {data['memlock'] // 1024} KiB may be locked in memory, which RDMA needs", "set `ulimit -l unlimited`", blocker=False,
        )  # fmt: skip
    for one in data["rdma"]:
        if one["state"] and "ACTIVE" not in one["state"]:
            yield Finding(
                host,
                "rdma",
                f"{one['device']} port {one['port']} is {one['state']}",
                "check its cable, or set `interface` to another",
                blocker=False,
            )


def _excepted(address: str, excepted: Sequence[str]) -> bool:
    return "*" in excepted or any(address == one or address.endswith(f".{one}") for one in excepted)


def _room(plan: Plan, host: str, data: Mapping[str, Any]) -> Iterator[Finding]:
    disk = data["disk"]
    if not disk["writable"]:
        yield Finding(
            host, "workdir", f"{disk['path']} cannot be written", "correct the host's `workdir`, or its rights"
        )
    if disk["free"] is not None and disk["free"] < _DISK_FULL:
        yield Finding(
            host,
            "disk",
            f"{disk['free'] // 1024} KiB are free for {disk['path']}",
            "make room, or choose another `workdir`",
        )
    else:
        wanted = sum(one.host == host for one in plan.instances) * int(plan.logs["max_bytes"]) * int(plan.logs["keep"])
        if disk["free"] is not None and disk["free"] < wanted:
            yield Finding(
                host,
                "disk",
                f"{disk['free'] / 2**30:.1f} GiB are free, logs may take {wanted / 2**30:.1f} GiB",
                "make room, or lower `logs.max_size`",
                blocker=False,
            )
    if plan.engine_kind == "vllm" and data["shm_bytes"] is not None and data["shm_bytes"] < _SHM:
        yield Finding(
            host,
            "shm",
            f"shared memory has {data['shm_bytes'] / 2**20:.0f} MiB",
            "enlarge it (docker: --shm-size=8g or --ipc=host)",
            blocker=False,
        )


def _gpus(plan: Plan, host: str, data: Mapping[str, Any], *, serving: bool) -> Iterator[Finding]:
    instances = [one for one in plan.instances if one.host == host and one.gpus]
    if not instances:
        return
    if data["gpus"] is None:
        yield Finding(
            host,
            "gpus",
            "nvidia-smi is not there or fails, so nobody looked at the GPUs",
            "check the NVIDIA driver",
            blocker=False,
        )
        return
    known = {str(one["index"]): one for one in data["gpus"]} | {one["uuid"]: one for one in data["gpus"]}
    for instance in instances:
        for gpu in instance.gpus:
            one = known.get(gpu)
            if one is None:
                has = ", ".join(str(one["index"]) for one in data["gpus"]) or "none"
                yield Finding(
                    host,
                    "gpus",
                    f"GPU {gpu} of {instance.name} is not there; there are {has}",
                    "correct `gpus` of the host",
                )
            elif not serving:
                yield from _gpu_memory(host, instance, one, data["gpu_processes"])


def _gpu_memory(
    host: str, instance: InstancePlan, gpu: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    total, used = gpu["total_mib"], gpu["used_mib"]
    if not total or used is None:
        return
    words = list(instance.argv)
    flag = "--gpu-memory-utilization"
    share = float(words[words.index(flag) + 1]) if flag in words else UTILIZATION
    owners = [
        f"pid {one['pid']} ({one['command'] or '?'}, {one['used_mib']} MiB)"
        for one in processes
        if one["uuid"] == gpu["uuid"]
    ]
    by = f" by {', '.join(owners)}" if owners else ""
    if used > (1 - share) * total:
        yield Finding(
            host, "gpus", f"GPU {gpu['index']} of {instance.name}: {used} of {total} MiB are taken{by}; vLLM wants {share:.0%} of it",
            "end what runs there, or lower gpu-memory-utilization",
        )  # fmt: skip
    elif owners:
        yield Finding(
            host,
            "gpus",
            f"GPU {gpu['index']} of {instance.name} is also used{by}",
            "end what runs there",
            blocker=False,
        )


def driver_too_old(drivers: Sequence[str], cuda: str) -> str | None:
    """Say what is wrong if a driver (such as 535.104) cannot run programs built for a CUDA release (such as 12.8.90).

    Within a major release any driver of it will do (NVIDIA's CUDA compatibility guide, minor version compatibility).
    """
    needed = _DRIVER_OF_CUDA.get(cuda.split(".", maxsplit=1)[0])
    for driver in drivers:
        major = driver.split(".", maxsplit=1)[0]
        if needed is not None and major.isdigit() and int(major) < needed:
            release = ".".join(cuda.split(".")[:2])
            return f"driver {driver} is too old for CUDA {release}, for which this vLLM is built: it needs {needed} or newer"
    return None


def _models(plan: Plan, answers: Mapping[str, HostAnswer]) -> Iterator[Finding]:
    """The same model string must mean the same model everywhere."""
    configs: dict[str, list[str]] = {}
    for host, answer in answers.items():
        found = answer.data["model"]
        if found is None:
            continue
        if not found["exists"] or found["config"] is None:
            lacks = "is not there" if not found["exists"] else "has no config.json"
            yield Finding(host, "model", f"{plan.model} {lacks}", "copy the model there, or name it as the hub does")
        else:
            configs.setdefault(found["config"], []).append(host)
    if len(configs) > 1:
        groups = sorted(configs.values(), key=len)
        for host in (host for group in groups[:-1] for host in group):
            yield Finding(
                host,
                "model",
                f"config.json of {plan.model} differs from that of {groups[-1][0]}",
                "copy the same model to all hosts",
            )
