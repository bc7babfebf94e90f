"""Environment variables that the file may not set, because pdctl does or because they are secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pdctl.topology.addresses import is_loopback_interface
from pdctl.topology.rules import Broken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pdctl.topology.schema import Topology
    from pdctl.topology.source import Path
    from pdctl.topology.written import Written

_ADDRESS = "remove it and write `hosts[].address`, from which each host gets its own"
_PORTS = "remove it; pdctl chooses it from `ports`"
_GPUS = "remove it; `hosts[].gpus` and `placement` say which GPUs an instance gets"
_RANKS = "remove it; `tp`, `dp` and `pp` say it"
_PASSED_ON = "remove it; pdctl passes it on from its own environment and writes it nowhere"
_OWNED: dict[str, str] = {
    "VLLM_HOST_IP": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _ADDRESS,
    "VLLM_DP_MASTER_IP": _ADDRESS,
    "MASTER_ADDR": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": _PORTS,
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": _PORTS,
    "VLLM_PORT": _PORTS,
    "VLLM_DP_MASTER_PORT": _PORTS,
    "MASTER_PORT": _PORTS,
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "HIP_VISIBLE_DEVICES": _GPUS,
    "ROCR_VISIBLE_DEVICES": _GPUS,
    "VLLM_DP_RANK": _RANKS,
    "VLLM_DP_RANK_LOCAL": _RANKS,
    "VLLM_DP_SIZE": _RANKS,
    "RANK": _RANKS,
    "LOCAL_RANK": _RANKS,
    "WORLD_SIZE": _RANKS,
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "remove it; pdctl sets it on both roles where the connector needs it",
    "NCCL_HOSTID": "remove it; `share_gpus` sets it where ranks share a GPU",
    "PDCTL_TREE": "remove it; pdctl marks its processes with it",
    "PDCTL_INSTANCE": "remove it; pdctl marks its processes with it",
    "HF_TOKEN": _PASSED_ON,
    "HUGGING_FACE_HUB_TOKEN": _PASSED_ON,
    "VLLM_API_KEY": "remove it and name the variable that holds the key in `proxy.api_key_env`",
}
_WHY: dict[str, str] = {
    _ADDRESS: "pdctl sets it to each host's own address; with another value engines talk to themselves or to nobody",
    _PORTS: "pdctl sets it for each process; one value for several would make them collide",
    _GPUS: "pdctl sets it for each process; another value would put instances on each other's GPUs",
    _RANKS: "pdctl and vLLM set it for each process",
    _PASSED_ON: "a secret must not stand in the file or in a plan",
}
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "TP_SOCKET_IFNAME")


def broken_environment(topology: Topology, written: Written) -> Iterator[Broken]:
    """Yield the variables, in all `env` of the file, that would break the cluster; values are not shown."""
    sections: list[tuple[Path, Mapping[str, str]]] = [
        (("engine", "env"), topology.engine.env),
        (("prefill", "env"), topology.prefill.env),
        (("decode", "env"), topology.decode.env),
        (("aggregated", "env"), topology.aggregated.env),
        *((("hosts", index, "env"), host.env) for index, host in enumerate(topology.hosts)),
    ]
    for path, env in sections:
        for name, value in env.items():
            at: Path = (*path, name)
            if name in _OWNED:
                fix = _OWNED[name]
                yield Broken(at, _WHY.get(fix, "pdctl sets it itself"), fix)
            elif name == "CUDA_DEVICE_ORDER" and value != "PCI_BUS_ID":
                what = f"{written.show(at)} would number the GPUs differently from `hosts[].gpus`"
                yield Broken(at, what, "remove it; pdctl sets PCI_BUS_ID, nvidia-smi's order")
            elif name in _INTERFACES and len(topology.hosts) > 1 and is_loopback_interface(value):
                what = f"{written.show(at)} is the loopback interface, through which no other host can be reached"
                yield Broken(at, what, "remove it and write `hosts[].interface`", (("hosts",),))
            elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                yield Broken(at, "this is no name of an environment variable", "use letters, digits and `_`")
            elif "\0" in value:
                yield Broken(at, "a variable cannot hold a NUL character", "remove it")
