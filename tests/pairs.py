"""Producers and consumers as people write them by hand, for the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdctl.connectors.judge import HandWritten, Misfit

Written = Mapping[str, Any] | str | None


def p2p(role: str, kv_port: int, http_port: int, **more: Any) -> dict[str, Any]:
    extra = {"proxy_ip": "10.0.0.9", "proxy_port": "30001", "http_port": str(http_port)}
    return {
        "kv_connector": "P2pNcclConnector", "kv_role": f"kv_{role}", "kv_port": kv_port, "kv_connector_extra_config": extra, **more,
    }  # fmt: skip


def nixl(role: str, **more: Any) -> dict[str, Any]:
    return {"kv_connector": "NixlConnector", "kv_role": f"kv_{role}", **more}


def pair(p: Written, d: Written, version: str = "0.22.1", tp: int = 1, **more: Any) -> list[HandWritten]:
    """A producer P and a consumer D on one host, with side channels apart."""
    return [
        HandWritten("P", "producer", version, 8100, tp, "a", p, more.get("p_side", 5600)),
        HandWritten("D", "consumer", version, 8200, tp, "a", d, more.get("d_side", 5700)),
    ]


def only(misfits: list[Misfit]) -> Misfit:
    assert len(misfits) == 1, misfits
    return misfits[0]
