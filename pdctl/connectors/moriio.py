"""MoRIIOConnector: AMD's `mori`, prefill writes or decode reads (vLLM 0.14.0 on)."""

from __future__ import annotations

from typing import Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, PortNeed, RuleProblem, Seat
from pdctl.vllm.releases import release

_PROXY_KEYS = ("proxy_ip", "proxy_ping_port")


class MoRIIO(Connector):
    """See `pdctl.connectors.base.Connector`. Facts: v1/moriio/moriio_common.py, vLLM 0.14.0 and 0.34.0."""

    name = "moriio"
    class_names = ("MoRIIOConnector",)
    protocol = (
        "engines register; the X-Request-Id names both ends; one after the other (read) or both legs at once (write)"
    )
    own_keys = ("http_port", "handshake_port", "notify_port", "host_ip")

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found = _tp_problems(ask)
        for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)):
            if shape.pp > 1:
                what = "MoRIIO gives the stages of a pipeline-parallel replica the same ports"
                found.append(RuleProblem((role, "pp"), what, f"set {role}.pp: 1 and use tp"))
            if shape.dp > 1:
                what = "MoRIIO's ports (base + dp + tp) collide between the DP ranks of a replica, or are dialled differently than bound"
                found.append(RuleProblem((role, "dp"), what, f"use dp: 1 and more {role}.replicas"))
        if ask.device == "cpu" and ask.engine_kind == "vllm":
            found.append(RuleProblem(("connector",), "MoRIIO needs AMD GPUs", "use `connector: nixl` on CPU engines"))
        missing = [key for key in _PROXY_KEYS if not ask.extra.get(key)]
        if ask.version < (0, 28, 0) and missing:
            what = f"MoRIIO in vLLM up to 0.27 registers with a proxy: {' and '.join(missing)} must be given"
            fix = "write connector.extra: {proxy_ip: ..., proxy_ping_port: ...} of the proxy that you run"
            found.append(RuleProblem(("connector",), what, fix))
        return found

    def warnings(self, ask: Ask) -> list[str]:  # noqa: ARG002 - the interface's signature
        return ["MoRIIO needs ROCm and the package mori in the engines' environment"]

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        tp = ask.shape(role).tp
        return [PortNeed("handshake", tp, "one for each TP rank"), PortNeed("notify", tp, "one for each TP rank")]

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        own: dict[str, Any] = {
            "http_port": str(seat.http_port),
            "handshake_port": str(seat.ports["handshake"]),
            "notify_port": str(seat.ports["notify"]),
        }
        known = release(ask.version).connectors.get(self.class_names[0])
        if known is not None and "host_ip" in known.extra_keys:
            own["host_ip"] = seat.address
        return self._config(ask, KV_ROLES[seat.role], {**ask.extra, **own})


def _tp_problems(ask: Ask) -> list[RuleProblem]:
    """Unequal sizes: vLLM 0.25.0 on, v1/moriio/moriio_connector.py; before 0.25 rank i meets rank i only."""
    p, d = ask.prefill.tp, ask.decode.tp
    if p == d:
        return []
    if ask.version < (0, 25, 0):
        what = f"MoRIIO in vLLM up to 0.24 needs the same TP on both roles, not {p} and {d}"
        return [RuleProblem(("decode", "tp"), what, f"use tp: {p} for both")]
    if max(p, d) % min(p, d):
        what = f"with MoRIIO one of prefill's TP ({p}) and decode's ({d}) must divide the other"
        return [RuleProblem(("decode", "tp"), what, f"use {min(p, d)} or {min(p, d) * 2}")]
    heads = (ask.model_config or {}).get("num_key_value_heads")
    if isinstance(heads, int) and "kv_lora_rank" not in (ask.model_config or {}) and min(p, d) < heads:
        what = (
            f"MoRIIO with different TP needs KV heads that are replicated on both roles: {heads} heads, TP {p} and {d}"
        )
        return [RuleProblem(("decode", "tp"), what, f"use tp: {p} for both")]
    return []


CONNECTOR = MoRIIO()
