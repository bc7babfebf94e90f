"""(topology, facts) -> Plan, in named steps. Pure: the same input gives the same plan, and no host is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdctl.connectors.base import Ask, Connector, PortNeed, Seat, Shape
from pdctl.errors import PlanError, Problem
from pdctl.plan.arguments import check_arguments
from pdctl.plan.connector_check import connector_problems
from pdctl.plan.engine import SECRETS, engine_argv, engine_env, here
from pdctl.plan.environment import check_environment
from pdctl.plan.fit import FitReport, fit_report
from pdctl.plan.gpus import gpu_problems, gpu_sum, host_gpus
from pdctl.plan.model import GpuSum, HostPlan, InstancePlan, Plan, PortRange, Rank
from pdctl.plan.placement import Placed, place
from pdctl.plan.ports import allocate_ports
from pdctl.plan.proxy import proxy_plan
from pdctl.plan.shapes import RoleShape, role_shapes
from pdctl.plan.versions import EngineVersion, chosen_connector, engine_version
from pdctl.topology.schema import Host, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.plan.facts import Facts
    from pdctl.topology.source import SourceMap

LOOPBACK = "127.0.0.1"


def plan_cluster(topology: Topology, facts: Facts, source: SourceMap) -> Plan:
    """Resolve everything `up` would do. Raises PlanError with all problems, each with its place in the file."""
    return _Planner(topology, facts, source).plan()


class _Planner:
    def __init__(self, topology: Topology, facts: Facts, source: SourceMap) -> None:
        self.topology, self.facts, self.source = topology, facts, source
        self.roles = role_shapes(topology)
        self.hosts: Sequence[Host] = topology.hosts or [Host(name="local")]
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def plan(self) -> Plan:
        connector, version = self._engine()
        ask = self._ask(connector, version)
        self._check_args(connector, version)
        if connector is not None:
            self._check_connector(connector, version, ask)
        fit, problems = fit_report(self.topology, self.roles, self.hosts, self.facts, connector, ask, self.source)
        self.problems += problems
        gpus, placed = self._place()
        ports, registration = self._ports(connector, ask)
        self._check_proxy()
        if self.problems:
            raise PlanError(sorted(self.problems, key=lambda one: (one.line, one.column)))
        engines = [
            self._instance(role, name, placed[name], ports[name], connector, ask, registration, version)
            for role in self.roles
            for name in role.names
        ]
        engines = self._after(engines)
        instances = [*engines, *self._proxy(engines, connector, registration)]
        return self._whole(connector, version, gpus, instances, fit)

    # - steps -

    def _engine(self) -> tuple[Connector | None, EngineVersion]:
        connector, problems = chosen_connector(self.topology, self.source)
        version, more = engine_version(self.topology, self.hosts, self.facts, connector, self.source)
        self.problems += [*problems, *more]
        if version.assumed and not more:
            self.warnings.append(
                f"no vLLM version is known: planned for {version.text}, the newest known; `engine.version` or --hosts says it for sure"
            )
        return connector, version

    def _ask(self, connector: Connector | None, version: EngineVersion) -> Ask:
        shapes = {role.role: role for role in self.roles}
        none = Shape(0, 1, 1, 1)
        producer, consumer = shapes.get("producer"), shapes.get("consumer")
        nvlinks = [self.facts.host(host.name).nvlink for host in self.hosts]
        return Ask(
            version=version.version,
            prefill=producer.shape if producer else none,
            decode=consumer.shape if consumer else none,
            device=self.topology.engine.device,
            engine_kind=self.topology.engine.kind,
            share_gpus=self.topology.share_gpus,
            hosts=len(self.hosts),
            model_config=self.facts.model_config,
            model=self.topology.model,
            extra=self.topology.connector.extra if self.topology.connector and connector else {},
            nvlink=all(nvlinks) if nvlinks and None not in nvlinks else None,
            prefill_args=producer.args if producer else None,
            decode_args=consumer.args if consumer else None,
        )

    def _check_args(self, connector: Connector | None, version: EngineVersion) -> None:
        sections = {
            "engine": self.topology.engine.args,
            **{role.key: getattr(self.topology, role.key).args for role in self.roles},
        }
        checked = check_arguments(
            sections, self.roles, version, self.source,
            simulated=self.topology.engine.kind == "sim", disaggregated=connector is not None and connector.disaggregates,
        )  # fmt: skip
        self.problems += checked.problems
        self.warnings += checked.warnings
        name = connector.class_name(version.version) if connector else None
        problems, warnings = check_environment(self.topology, self.roles, version, name, self.source)
        self.problems += problems
        self.warnings += warnings

    def _check_connector(self, connector: Connector, version: EngineVersion, ask: Ask) -> None:
        problems, warnings = connector_problems(self.topology, connector, version, ask, self.source)
        self.problems += problems
        self.warnings += warnings

    def _place(self) -> tuple[GpuSum, dict[str, Placed]]:
        gpus = host_gpus(self.topology, self.hosts, self.facts)
        known = [ids for ids in gpus.values() if ids is not None]
        counted = self.topology.engine.device == "gpu"
        have = sum(len(ids) for ids in known) if counted and len(known) == len(gpus) else None
        found = gpu_sum(self.roles, self.topology.share_gpus, have)
        self.problems += gpu_problems(self.topology, self.hosts, gpus, found, self.source)
        if counted and self.topology.engine.kind == "vllm":
            gpus = {name: ids if ids is not None else self._unknown(name, found) for name, ids in gpus.items()}
        if self.problems:
            return found, {}
        placed, problems = place(
            self.topology, self.roles, self.hosts, {name: ids or () for name, ids in gpus.items()}, self.source
        )
        self.problems += problems
        if self.topology.share_gpus > 1:
            self.warnings.append(
                f"share_gpus {self.topology.share_gpus}: several ranks on one GPU are for trying out, not for measuring"
            )
        return found, placed

    def _unknown(self, host: str, found: GpuSum) -> tuple[str, ...]:
        """Return the GPUs of a host about which nobody said anything."""
        if self.facts.assume_gpus:
            self.warnings.append(
                f"the GPUs of host {host} are unknown: planned as if it had the {found.needed} that are needed ({found.formula})"
            )
            return tuple(str(index) for index in range(found.needed))
        path = next((("hosts", index) for index, one in enumerate(self.topology.hosts) if one.name == host), ("hosts",))
        self.problems.append(
            self.source.problem(
                path, f"no GPU is known on host {host} (NVML shows none), the layout needs {found.formula}",
                "say how many with hosts: [{name: local, gpus: N}], or set engine.device: cpu or engine.kind: sim",
            )
        )  # fmt: skip
        return ()

    def _ports(self, connector: Connector | None, ask: Ask) -> tuple[dict[str, dict[str, PortRange]], int | None]:
        needs: dict[str, list[PortNeed]] = {}
        if connector is not None:
            needs = {role.role: connector.ports(ask, role.role) for role in self.roles if role.role != "aggregated"}
        registers = connector is not None and connector.registers(ask) and self.topology.proxy.kind != "none"
        ports, registration, problems = allocate_ports(
            self.topology, self.roles, needs, registers=registers, source=self.source
        )
        self.problems += problems
        return ports, registration

    def _check_proxy(self) -> None:
        if self.topology.proxy.kind == "vllm-router":
            self.problems.append(
                self.source.problem(
                    ("proxy", "kind"),
                    "`vllm-router` cannot be started by this version of pdctl",
                    "use `builtin` or `auto`",
                )
            )

    def _instance(
        self, role: RoleShape, name: str, placed: Placed, ports: dict[str, PortRange], connector: Connector | None, ask: Ask,
        registration: int | None, version: EngineVersion,
    ) -> InstancePlan:  # fmt: skip
        host = self._host(placed.host)
        address = self._address(host)
        uses = connector if role.role != "aggregated" else None
        seat = None
        if uses is not None:
            at = (self._address(self._proxy_host()), registration) if registration is not None else None
            first = {use: one.first for use, one in ports.items()}
            seat = Seat(name, role.role, address, ports["http"].first, first, at, host.interface)
        config = uses.kv_transfer_config(ask, seat) if uses and seat else None
        argv = engine_argv(
            self.topology, role, host, self.facts, model=here(self.topology.model, host, self.facts) if self._is_path() else self.topology.model,
            served=self._served(), address=address, http_port=ports["http"].first, config=config,
            connector_args=uses.args(ask, role.role) if uses else {}, version=version.text,
        )  # fmt: skip
        return InstancePlan(
            name=name, role=role.role, host=host.name, address=address, gpus=placed.gpus, ranks=_ranks(role.shape, placed.gpus), ports=ports,
            argv=argv, env=engine_env(self.topology, role, host, placed, address, uses, ask, seat), secret_env=SECRETS if self.topology.engine.kind == "vllm" else (),
            kv_transfer_config=config,
        )  # fmt: skip

    def _after(self, engines: list[InstancePlan]) -> list[InstancePlan]:
        """Let engines that share a GPU start one after another: each measures its memory while no other one changes.

        With --kv-cache-memory-bytes nothing is measured and they may start at once.
        """
        from dataclasses import replace

        if self.topology.share_gpus == 1 or self.topology.engine.kind != "vllm":
            return engines
        measured = {role.role for role in self.roles if "kv-cache-memory-bytes" not in role.args}
        result: list[InstancePlan] = []
        for engine in engines:
            before = [one.name for one in result if one.host == engine.host and set(one.gpus) & set(engine.gpus)]
            result.append(replace(engine, after=tuple(before[-1:])) if engine.role in measured else engine)
        return result

    def _proxy(
        self, engines: Sequence[InstancePlan], connector: Connector | None, registration: int | None
    ) -> list[InstancePlan]:
        if self.topology.proxy.kind == "none":
            return []
        host = self._proxy_host()
        name = connector.wire_name if connector else None
        return [
            proxy_plan(
                self.topology,
                host,
                self._address(host),
                self.facts,
                engines,
                connector=name,
                registration=registration,
                served=self._served(),
            )
        ]

    def _whole(
        self, connector: Connector | None, version: EngineVersion, gpus: GpuSum, instances: Sequence[InstancePlan],
        fit: FitReport | None,
    ) -> Plan:  # fmt: skip
        topology = self.topology
        used = {
            host: tuple(dict.fromkeys(gpu for one in instances if one.host == host for gpu in one.gpus))
            for host in {one.host for one in instances}
        }
        return Plan(
            cluster=topology.name,
            model=topology.model,
            served_model_name=self._served(),
            engine_kind=topology.engine.kind,
            device=topology.engine.device,
            vllm_version=version.text,
            version_assumed=version.assumed,
            connector=connector.wire_name if connector else None,
            connector_title=connector.title if connector else None,
            gpus=gpus,
            hosts=tuple(
                HostPlan(host.name, self._address(host), host.workdir, host.ssh.model_dump(exclude_none=True) if host.ssh else None, used[host.name])
                for host in self.hosts
                if host.name in used
            ),
            instances=tuple(instances),
            warnings=tuple(dict.fromkeys(self.warnings)),
            health={"interval_s": topology.health.interval, "startup_timeout_s": topology.health.startup_timeout, "deep": topology.health.deep},
            restart={
                "policy": topology.restart.policy, "max": topology.restart.max, "window_s": topology.restart.window,
                "backoff_s": topology.restart.backoff,
            },
            fit=fit.to_dict() if fit else None,
            logs={"max_bytes": topology.logs.max_size, "keep": topology.logs.keep},
        )  # fmt: skip

    # - small questions -

    def _host(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def _proxy_host(self) -> Host:
        return self._host(self.topology.proxy.host) if self.topology.proxy.host else self.hosts[0]

    @staticmethod
    def _address(host: Host) -> str:
        return host.address or LOOPBACK

    def _is_path(self) -> bool:
        return self.topology.engine.kind == "vllm" and self.topology.model.startswith(("/", "~/", "./", "../", "."))

    def _served(self) -> str:
        return self.topology.served_model_name or self.topology.model.rstrip("/").rsplit("/", 1)[-1]


def _ranks(shape: Shape, gpus: Sequence[str]) -> tuple[Rank, ...]:
    return tuple(
        Rank(
            (dp * shape.pp + pp) * shape.tp + tp,
            dp,
            pp,
            tp,
            gpus[(dp * shape.pp + pp) * shape.tp + tp] if gpus else None,
        )
        for dp in range(shape.dp)
        for pp in range(shape.pp)
        for tp in range(shape.tp)
    )
