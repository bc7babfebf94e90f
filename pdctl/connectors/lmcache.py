"""LMCacheConnectorV1: P/D through the lmcache package, over NIXL (vLLM 0.9.2 on)."""

from __future__ import annotations

from typing import Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, PortNeed, RuleProblem, Seat

_BUFFER_BYTES = 2_147_483_648
_PROXY_KEYS = ("lmcache.pd_proxy_host", "lmcache.pd_proxy_port")


class LMCache(Connector):
    """See `pdctl.connectors.base.Connector`.

    lmcache takes every key of its own config as `lmcache.KEY` in kv_connector_extra_config (vLLM 0.33.0,
    v1/lmcache_integration/vllm_v1_adapter.py:591), so no file has to lie on the hosts. Ports are lists, one for each TP rank
    (lmcache, v1/config.py).
    """

    name = "lmcache"
    class_names = ("LMCacheConnectorV1",)
    protocol = (
        "prefill with a disagg_spec that names decode's ports; lmcache tells the proxy over ZMQ when decode may start"
    )
    own_keys = (
        "lmcache_rpc_port", "lmcache.enable_pd", "lmcache.pd_role", "lmcache.pd_peer_host", "lmcache.pd_peer_init_port",
        "lmcache.pd_peer_alloc_port",
    )  # fmt: skip

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found = []
        p, d = ask.prefill.tp, ask.decode.tp
        if p != d:
            what = f"LMCache's P/D pairs each rank with the same rank: TP must be equal, not {p} and {d}"
            found.append(RuleProblem(("decode", "tp"), what, f"use tp: {p} for both"))
        for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)):
            if shape.pp > 1 or shape.dp > 1:
                size = "pp" if shape.pp > 1 else "dp"
                what = f"LMCache's P/D names its ports by TP rank only: {size.upper()} ranks would share them"
                found.append(RuleProblem((role, size), what, f"set {role}.{size}: 1 and use tp or more replicas"))
        missing = [key for key in _PROXY_KEYS if not ask.extra.get(key)]
        if missing:
            fix = 'write connector.extra: {"lmcache.pd_proxy_host": ..., "lmcache.pd_proxy_port": ...} of the proxy that you run'
            found.append(
                RuleProblem(
                    ("connector",),
                    f"LMCache's producers tell a proxy what they sent: {' and '.join(missing)} must be given",
                    fix,
                )
            )
        return found

    def warnings(self, ask: Ask) -> list[str]:  # noqa: ARG002 - the interface's signature
        return [
            "LMCache needs the packages lmcache and nixl in the engines' environment, of versions that fit this vLLM"
        ]

    def ports(self, ask: Ask, role: str) -> list[PortNeed]:
        if role == "producer":
            return []
        tp = ask.shape(role).tp
        return [PortNeed("init", tp, "one for each TP rank"), PortNeed("alloc", tp, "one for each TP rank")]

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        extra: dict[str, Any] = {
            "discard_partial_chunks": False,
            "lmcache.local_cpu": False,
            "lmcache.transfer_channel": "nixl",
            "lmcache.pd_buffer_size": _BUFFER_BYTES,
            "lmcache.pd_buffer_device": "cpu" if ask.device == "cpu" else "cuda",
            **ask.extra,
            "lmcache_rpc_port": seat.name,
            "lmcache.enable_pd": True,
            "lmcache.pd_role": "sender" if seat.role == "producer" else "receiver",
        }
        if seat.role == "consumer":
            for key in _PROXY_KEYS:
                extra.pop(key, None)
            tp = ask.decode.tp
            extra |= {
                "lmcache.pd_peer_host": seat.address,
                "lmcache.pd_peer_init_port": [seat.ports["init"] + rank for rank in range(tp)],
                "lmcache.pd_peer_alloc_port": [seat.ports["alloc"] + rank for rank in range(tp)],
            }
        return self._config(ask, KV_ROLES[seat.role], extra)

    def env(self, ask: Ask, seat: Seat) -> dict[str, str]:  # noqa: ARG002 - the interface's signature
        return {"PYTHONHASHSEED": "0"}  # chunks are named by hash(): both sides must compute the same


CONNECTOR = LMCache()
