"""MooncakeConnector: decode asks, prefill writes by RDMA (vLLM 0.13.0 on)."""

from __future__ import annotations

from typing import Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, PortNeed, RuleProblem, Seat

_PORT = "VLLM_MOONCAKE_BOOTSTRAP_PORT"


class Mooncake(Connector):
    """See `pdctl.connectors.base.Connector`.

    Up to 0.15 every worker listens (0.15.1, v1/mooncake_connector.py:905); from 0.16 on prefill has one bootstrap server and the
    rest is on ports that the system chooses (0.16.0, v1/mooncake/mooncake_connector.py:527 and 629).
    """

    name = "mooncake"
    class_names = ("MooncakeConnector",)
    protocol = (
        "both legs at once; decode is told prefill's bootstrap address and engine id, which the proxy asks prefill for"
    )
    own_keys = ("bootstrap_server_address",)

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found = []
        p, d = ask.prefill.tp, ask.decode.tp
        if ask.version < (0, 19, 0) and p != d:
            what = f"Mooncake in vLLM up to 0.18 needs the same TP on both roles, not {p} and {d}"
            found.append(RuleProblem(("decode", "tp"), what, f"use tp: {p} for both"))
        elif max(p, d) % min(p, d):
            what = f"with Mooncake one of prefill's TP ({p}) and decode's ({d}) must divide the other"
            found.append(RuleProblem(("decode", "tp"), what, f"use {min(p, d)} or {min(p, d) * 2}"))
        for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)):
            if shape.pp > 1 and ask.version < (0, 24, 0):
                what = "Mooncake takes no pipeline-parallel replicas before vLLM 0.24"
                found.append(RuleProblem((role, "pp"), what, f"set {role}.pp: 1 and use tp"))
        blocks = [(args or {}).get("block-size") for args in (ask.prefill_args, ask.decode_args)]
        if None not in blocks and blocks[0] != blocks[1]:
            what = f"Mooncake needs one block size on both roles, not {blocks[0]} and {blocks[1]}"
            found.append(RuleProblem(("decode", "args", "block-size"), what, f"use {blocks[0]} for both"))
        if ask.device == "cpu" and ask.engine_kind == "vllm":
            found.append(RuleProblem(("connector",), "Mooncake needs GPUs", "use `connector: nixl` on CPU engines"))
        return found

    def warnings(self, ask: Ask) -> list[str]:
        found = ["Mooncake needs the package mooncake-transfer-engine in the engines' environment"]
        if ask.extra.get("mooncake_protocol", "rdma") == "rdma":
            found.append(
                "Mooncake moves KV by RDMA: without such a network set `connector.extra.mooncake_protocol: tcp`"
            )
        return found

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        shape = ask.shape(role)
        if ask.version < (0, 16, 0):
            return [PortNeed("side_channel", shape.dp * shape.tp, "one for each worker (vLLM up to 0.15)")]
        return (
            [PortNeed("bootstrap", 1, "one server for each producer, on its first rank")] if role == "producer" else []
        )

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        return self._config(ask, KV_ROLES[seat.role], ask.extra)

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:  # noqa: ARG002 - the interface's signature
        ports = [seat.ports[use] for use in ("side_channel", "bootstrap") if use in seat.ports]
        return {_PORT: str(ports[0])} if ports else {}


CONNECTOR = Mooncake()
