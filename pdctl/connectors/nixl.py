"""NixlConnector: decode reads the KV cache out of prefill's memory (vLLM 0.9.2 on; NixlPullConnector is its name from 0.24 on)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, HandOver, HandOverError, Peer, PortNeed, RuleProblem, Seat
from pdctl.connectors.prefill import prefill_body
from pdctl.connectors.state_layers import has_state_layers
from pdctl.vllm.releases import release

_ASK_FOR_KV = {
    "do_remote_decode": True, "do_remote_prefill": False,
    "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip
_NEEDED = ("remote_engine_id", "remote_host", "remote_port")


class NixlHandOver:
    """kv_transfer_params from the producer's answer, verbatim into the consumer's request."""

    one_prompt_per_request = True
    plain_requests_kill = False
    names_kv = True

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


class Nixl(Connector):
    """See `pdctl.connectors.base.Connector`; what push and pull share is here too."""

    name = "nixl"
    class_names: tuple[str, ...] = ("NixlConnector", "NixlPullConnector")
    handover: HandOver | None = NixlHandOver()
    protocol = "prefill, then decode with the kv_transfer_params of prefill's answer"
    own_keys = ("engine_id", "kv_role", "kv_port", "kv_ip", "kv_rank", "kv_parallel_size")
    simulated = True

    def problems(self, ask: Ask) -> list[RuleProblem]:
        return [*tp_problems(ask), *_pp_problems(ask), *kv_head_problems(ask), *buffer_problems(ask)]

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
        """vLLM 0.11.0, v1/nixl_connector.py:268 and 492: PORT + dp_rank * tp (+ tp_rank); 0.11.1:353: PORT + dp_rank."""
        shape = ask.shape(role)
        if ask.version < (0, 11, 1):
            return [PortNeed("side_channel", shape.dp * shape.tp, "one for each worker (vLLM up to 0.11.0)")]
        return [PortNeed("side_channel", shape.dp, "one for each DP rank")]

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        config = self._config(ask, KV_ROLES[seat.role], ask.extra)
        return {**config, "kv_buffer_device": "cpu" if ask.device == "cpu" else "cuda"}

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
        if has_state_layers(ask.model_config) and "VLLM_SSM_CONV_STATE_LAYOUT" in release(ask.version).environment:
            env["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"  # asserted for Mamba layers (0.20.2, v1/nixl/worker.py)
        return env


def tp_problems(ask: Ask) -> list[RuleProblem]:
    """Up to 0.13 decode's TP is a multiple of prefill's (0.13.0, v1/nixl_connector.py); later either may be the larger one."""
    p, d = ask.prefill.tp, ask.decode.tp
    if ask.version < (0, 14, 0) and d < p:
        what = f"Nixl in vLLM up to 0.13 needs decode's TP ({d}) at least as large as prefill's ({p})"
        return [RuleProblem(("decode", "tp"), what, f"use decode.tp: {p}")]
    if max(p, d) % min(p, d):
        small = min(p, d)
        what = f"with Nixl one of prefill's TP ({p}) and decode's ({d}) must divide the other"
        return [RuleProblem(("decode", "tp"), what, f"use {small} or {small * 2}")]
    return []


def _pp_problems(ask: Ask) -> list[RuleProblem]:
    roles = [role for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)) if shape.pp > 1]
    push = " and tp, or `connector: nixl_push` for prefill" if ask.version >= (0, 26, 0) else " and use tp"
    return [
        RuleProblem(
            (role, "pp"),
            "Nixl does not carry KV of pipeline-parallel replicas: its hand-shake names TP ranks only",
            f"set {role}.pp: 1{push if role == 'prefill' else ' and use tp'}",
        )
        for role in roles
    ]


def kv_head_problems(ask: Ask) -> list[RuleProblem]:
    """vLLM 0.22.1, v1/nixl/worker.py:1434; 0.33.0, v1/nixl/base_worker.py:2727."""
    config = ask.model_config or {}
    heads = config.get("num_key_value_heads")
    p, d = ask.prefill.tp, ask.decode.tp
    if ask.version < (0, 14, 0) or not isinstance(heads, int) or "kv_lora_rank" in config or not (p > d and p > heads):
        return []
    what = (
        f"Nixl fails an assertion when prefill's TP ({p}) is over decode's ({d}) and over the model's {heads} KV heads"
    )
    return [RuleProblem(("prefill", "tp"), what, f"use prefill.tp: {max(heads, d)} or less")]


def buffer_problems(ask: Ask) -> list[RuleProblem]:
    """Decode's blocks must be a multiple of prefill's, and equal where prefill's TP is larger (0.22.1, v1/nixl/worker.py)."""
    p, d = ((args or {}).get("block-size") for args in (ask.prefill_args, ask.decode_args))
    if not isinstance(p, int) or not isinstance(d, int) or p == d or p < 1:
        return []
    if ask.version < (0, 14, 0) or ask.prefill.tp > ask.decode.tp:
        return [
            RuleProblem(
                ("decode", "args", "block-size"),
                f"with Nixl both roles need one block size here, not {p} and {d}",
                f"use {p} for both",
            )
        ]
    if d % p:
        return [
            RuleProblem(
                ("decode", "args", "block-size"),
                f"with Nixl decode's block size ({d}) must be a multiple of prefill's ({p})",
                f"use {p}",
            )
        ]
    return []


CONNECTOR = Nixl()
