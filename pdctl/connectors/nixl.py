"""NixlConnector: decode reads the KV cache out of prefill's memory (vLLM 0.9.2 on)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdctl.connectors.base import Ask, HandOverError, Peer, PortNeed, RuleProblem, Seat, Version
from pdctl.connectors.prefill import prefill_body

_ASK_FOR_KV = {
    "do_remote_decode": True, "do_remote_prefill": False,
    "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip
_NEEDED = ("remote_engine_id", "remote_host", "remote_port")
_OWN_KEYS = ("engine_id", "kv_role", "kv_port", "kv_ip", "kv_rank", "kv_parallel_size")


class NixlHandOver:
    """kv_transfer_params from the producer's answer, verbatim into the consumer's request."""

    one_prompt_per_request = True
    plain_requests_kill = False

    def request_id(self, unique: str, producer: Peer, consumer: Peer) -> str:  # noqa: ARG002 - the KV is named by its blocks
        return unique

    def prefill_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return prefill_body(body, _ASK_FOR_KV)

    def decode_params(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        """Check what the producer hands over before the consumer sees it.

        With a key missing the consumer parks the request for ever; with `do_remote_prefill` and no block ids its engine dies of an
        assertion (vLLM 0.22.1, v1/nixl/scheduler.py:461; 0.33.0, pull_scheduler.py:135).
        """
        params = answer.get("kv_transfer_params")
        if not isinstance(params, Mapping):
            raise HandOverError(
                "the producer's answer has no kv_transfer_params: it computed the prompt and kept no KV for a peer"
            )
        if not params.get("remote_block_ids"):
            raise HandOverError("the producer hands over no blocks (remote_block_ids is empty)")
        missing = [key for key in _NEEDED if not params.get(key)]
        if missing:
            raise HandOverError(f"the producer's kv_transfer_params lack {', '.join(missing)}")
        return {**params, "do_remote_prefill": True, "do_remote_decode": False}


class Nixl:
    """See `pdctl.connectors.base.Connector`."""

    name = "nixl"
    class_name = "NixlConnector"
    aliases: tuple[str, ...] = ("NixlPullConnector",)
    first: Version = (0, 9, 2)
    last: Version | None = None
    handover = NixlHandOver()

    def problems(self, ask: Ask) -> list[RuleProblem]:
        return [*_tp_problems(ask), *_pp_problems(ask), *_kv_head_problems(ask), *_extra_problems(ask)]

    def warnings(self, ask: Ask) -> list[str]:
        if ask.device == "gpu" and ask.engine_kind == "vllm" and ask.hosts > 1:
            return [
                (
                    "Nixl between hosts takes the network that UCX finds: set `hosts[].interface` where there is more than one, and look at "
                    "GB/s in `pdctl verify`"
                )
            ]
        return []

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        shape = ask.prefill if role == "producer" else ask.decode
        if ask.version < (0, 11, 0):
            return [PortNeed("side_channel", shape.dp * shape.tp, "one for each worker (vLLM up to 0.10.2)")]
        return [PortNeed("side_channel", shape.dp, "one for each DP rank")]

    def registers(self, ask: Ask) -> bool:  # noqa: ARG002 - the interface's signature
        return False

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        config: dict[str, Any] = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_producer" if seat.role == "producer" else "kv_consumer",
            "kv_buffer_device": "cpu" if ask.device == "cpu" else "cuda",
        }
        if ask.version >= (0, 14, 0):
            config["kv_load_failure_policy"] = "fail"  # else a failed load is computed again and nobody notices
        if ask.extra:
            config["kv_connector_extra_config"] = dict(ask.extra)
        return config

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:
        env = {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": seat.address,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(seat.ports["side_channel"]),
        }
        if ask.device == "cpu":
            env["UCX_TLS"] = "tcp,sm,self"
        elif not ask.nvlink or ask.share_gpus > 1:
            # Where UCX sees no NVLink it reads over TCP: 0.47 instead of 20.7 GB/s on one H200 (vLLM issue 52607).
            env["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] = "on"
        return env

    def args(self, ask: Ask, role: str) -> dict[str, Any]:  # noqa: ARG002 - the interface's signature
        return {}


def _tp_problems(ask: Ask) -> list[RuleProblem]:
    p, d = ask.prefill.tp, ask.decode.tp
    if ask.version < (0, 12, 0):
        if d < p:
            return [
                RuleProblem(
                    ("decode", "tp"),
                    f"Nixl in vLLM up to 0.11 needs decode's TP ({d}) at least as large as prefill's ({p})",
                    f"use decode.tp: {p}",
                )
            ]
        if d % p:
            return [
                RuleProblem(
                    ("decode", "tp"),
                    f"Nixl in vLLM up to 0.11 needs decode's TP ({d}) to be a multiple of prefill's ({p})",
                    f"use {p} or {2 * p}",
                )
            ]
        return []
    if max(p, d) % min(p, d):
        small = min(p, d)
        return [
            RuleProblem(
                ("decode", "tp"),
                f"with Nixl one of prefill's TP ({p}) and decode's ({d}) must divide the other",
                f"use {small} or {small * 2}",
            )
        ]
    return []


def _pp_problems(ask: Ask) -> list[RuleProblem]:
    roles = [role for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)) if shape.pp > 1]
    return [
        RuleProblem(
            (role, "pp"),
            "Nixl does not carry KV of pipeline-parallel replicas: its hand-shake names TP ranks only",
            f"set {role}.pp: 1 and use tp",
        )
        for role in roles
    ]


def _kv_head_problems(ask: Ask) -> list[RuleProblem]:
    heads = (ask.model_config or {}).get("num_key_value_heads")
    p, d = ask.prefill.tp, ask.decode.tp
    if (
        ask.version >= (0, 14, 0)
        and isinstance(heads, int)
        and p > d
        and p > heads
        and "kv_lora_rank" not in (ask.model_config or {})
    ):
        return [
            RuleProblem(
                ("prefill", "tp"), f"Nixl fails an assertion when prefill's TP ({p}) is over decode's ({d}) and over the model's {heads} KV heads",
                f"use prefill.tp: {max(heads, d)} or less",
            )
        ]  # fmt: skip
    return []


def _extra_problems(ask: Ask) -> list[RuleProblem]:
    return [
        RuleProblem(
            ("connector", "extra", key),
            f"`{key}` is no key of kv_connector_extra_config; pdctl sets it where it belongs",
            "remove it",
        )
        for key in ask.extra
        if key in _OWN_KEYS
    ]


CONNECTOR = Nixl()
