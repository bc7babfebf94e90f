"""P2pNcclConnector: prefill pushes the KV cache to decode over NCCL (vLLM 0.9.2 to 0.23.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, Peer, PortNeed, RuleProblem, Seat
from pdctl.connectors.prefill import prefill_body
from pdctl.vllm.releases import release

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEM_POOL_GB = "4"
"""Pinned host memory of each rank; vLLM's default is 32 GiB (p2p_nccl_engine.py), which eight ranks make 256."""
_BUFFER_BYTES = 4_000_000_000
"""GPU bytes that the holder of KV keeps before it spills (consumer) or drops (producer with GET) it."""


_NO_SUFFIX = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"
"""Both sides need it: a suffix of its own on each makes the keys of one request differ."""


class P2pNcclHandOver:
    """The request id names both ends; nothing is in the bodies."""

    one_prompt_per_request = False
    plain_requests_kill = True
    names_kv = True

    def request_id(self, unique: str, producer: Peer, consumer: Peer) -> str:
        """Raises ValueError if an end has no KV address: a request without both kills the engine."""
        if not producer.kv_address or not consumer.kv_address:
            lacking = producer.name if not producer.kv_address else consumer.name
            raise ValueError(f"{lacking} has no KV address")
        # vLLM's pattern is greedy up to the last colon (p2p_nccl_connector.py:503), so the tail must hold none.
        tail = unique.replace(":", "-")
        return f"___prefill_addr_{producer.kv_address}___decode_addr_{consumer.kv_address}_{tail}"

    def prefill_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return prefill_body(body, None)

    def decode_params(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002 - the interface's signature
        return None


class P2pNccl(Connector):
    """See `pdctl.connectors.base.Connector`."""

    name = "p2p_nccl"
    class_names = ("P2pNcclConnector",)
    handover = P2pNcclHandOver()
    protocol = "prefill read to its end, then decode; the X-Request-Id of both names both KV addresses"
    own_keys = ("proxy_ip", "proxy_port", "http_port")
    simulated = True

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found: list[RuleProblem] = []
        randomised = ask.version >= (0, 14, 0)  # v1/engine/input_processor.py:444
        if randomised and _NO_SUFFIX not in release(ask.version).environment:
            found.append(
                RuleProblem(
                    ("connector",),
                    "P2pNccl hangs in vLLM 0.14 to 0.16: a random suffix on request ids makes sender and receiver wait for each other, and no switch exists",
                    "use vLLM 0.17 to 0.23, or `connector: nixl`",
                )
            )
        for size in ("tp", "pp"):
            p, d = getattr(ask.prefill, size), getattr(ask.decode, size)
            if p != d:
                found.append(
                    RuleProblem(
                        ("decode", size),
                        f"P2pNccl needs the same {size.upper()} on both roles, not {p} and {d}",
                        f"use {size}: {p} for both",
                    )
                )
        for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)):
            if shape.dp > 1:
                found.append(
                    RuleProblem(
                        (role, "dp"),
                        "P2pNccl cannot tell DP ranks apart: their ports collide",
                        f"use dp: 1 and more {role}.replicas",
                    )
                )
        blocks = [(args or {}).get("block-size") for args in (ask.prefill_args, ask.decode_args)]
        if blocks[0] != blocks[1]:
            what = "P2pNccl needs the same block size on both roles: whole blocks are sent"
            found.append(RuleProblem(("decode", "args", "block-size"), what, "set block-size under engine.args"))
        if ask.device == "cpu" and ask.engine_kind == "vllm":
            found.append(RuleProblem(("connector",), "P2pNccl needs GPUs", "use `connector: nixl` on CPU engines"))
        return [*found, *_model_problems(ask)]

    def warnings(self, ask: Ask) -> list[str]:
        found = [
            "P2pNccl: an engine ends on any request that did not come through the proxy; after one instance restarts, restart its peers too"
        ]
        if _needs_v1_runner(ask):
            found.append(
                "Qwen3 with P2pNccl in vLLM 0.22 and 0.23: VLLM_USE_V2_MODEL_RUNNER=0 on decode, or its CUDA graphs answer without the KV that was moved"
            )
        if "cudagraph_mode" in self.args(ask, "producer").get("compilation-config", {}):
            found.append(
                "P2pNccl: piecewise CUDA graphs on prefill, since a full graph skips the saving of KV for one-token batches"
            )
        return found

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        shape = ask.shape(role)
        return [PortNeed("kv", shape.tp * shape.pp, "one for each rank (kv_port + rank)")]

    def registers(self, ask: Ask) -> bool:  # noqa: ARG002 - the interface's signature
        return True

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        extra: dict[str, Any] = {"send_type": "PUT_ASYNC", "mem_pool_size_gb": _MEM_POOL_GB, **ask.extra}
        if seat.registration is not None:
            address, port = seat.registration
            extra |= {
                "proxy_ip": address,
                "proxy_port": str(port),
            }  # a number is a TypeError in every worker: it is concatenated
        extra["http_port"] = str(seat.http_port)
        config: dict[str, Any] = {
            "kv_connector": "P2pNcclConnector",
            "kv_role": KV_ROLES[seat.role],
            "kv_port": seat.ports["kv"],
        }
        # a producer that pushes reads none (0.22.1, p2p_nccl_engine.py:251)
        if seat.role == "consumer" or extra["send_type"] == "GET":
            config["kv_buffer_size"] = _BUFFER_BYTES
        return {**config, "kv_connector_extra_config": extra}

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:
        env: dict[str, str] = {}
        if _NO_SUFFIX in release(ask.version).environment:
            env[_NO_SUFFIX] = "1"
        if seat.role == "consumer" and _needs_v1_runner(ask):
            env["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        if ask.share_gpus > 1:
            env["NCCL_HOSTID"] = f"pdctl-{seat.name}"  # NCCL refuses two ranks of one host on one device
            env["NCCL_SOCKET_IFNAME"] = seat.interface or "lo"
        return env

    def args(self, ask: Ask, role: str) -> dict[str, Any]:
        """Piecewise graphs on prefill: KV is saved from Python around the attention op, which a full graph does not run.

        vLLM 0.22.1, v1/worker/gpu_model_runner.py and kv_connector/v1/base.py:592; vLLM's own example starts prefill eagerly.
        """
        given = {
            key.lstrip("-").replace("_", "-")
            for key in (ask.prefill_args if role == "producer" else ask.decode_args) or {}
        }
        # -O is a level beside the compilation config from 0.12 on; before, it was the config itself.
        own = {"enforce-eager", "compilation-config", "cc", *(["O"] if ask.version < (0, 12, 0) else [])}
        chosen = own & {key.split(".")[0] for key in given}
        if role != "producer" or chosen or ask.version < (0, 11, 0) or ask.engine_kind != "vllm":
            return {}
        return {"compilation-config": {"cudagraph_mode": "PIECEWISE"}}


def _needs_v1_runner(ask: Ask) -> bool:
    """Say whether this is the case of 0 right outputs of 12: Qwen3 on the V2 model runner (measured on an H200, vLLM 0.22.1)."""
    if not (0, 22, 0) <= ask.version <= (0, 23, 99) or ask.engine_kind != "vllm":
        return False
    if ask.model_config is None:
        return "qwen3" in ask.model.lower()
    names = [
        str(ask.model_config.get("model_type", "")),
        *(str(one) for one in ask.model_config.get("architectures") or []),
    ]
    return any("qwen3" in name.lower() for name in names)


def _model_problems(ask: Ask) -> list[RuleProblem]:
    config = ask.model_config or {}
    if "kv_lora_rank" in config and ask.version < (0, 23, 0):
        return [
            RuleProblem(
                ("model",),
                "P2pNccl up to vLLM 0.22 does not put MLA's KV cache into decode: the answers are garbage",
                "use vLLM 0.23 or `connector: nixl`",
            )
        ]
    return []


CONNECTOR = P2pNccl()
