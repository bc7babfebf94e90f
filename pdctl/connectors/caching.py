"""Connectors that cache KV and do not hand it from prefill to decode: passed through, and said so."""

from __future__ import annotations

from typing import Any

from pdctl.connectors.base import Ask, Connector, Seat
from pdctl.connectors.example import PromptHandOver


class Caching(Connector):
    """See `pdctl.connectors.base.Connector`."""

    disaggregates = False
    handover = PromptHandOver()
    protocol = "none: it does not disaggregate"

    def __init__(self, name: str, class_name: str, does: str, kv_role: str = "kv_both") -> None:
        self.name, self.class_names, self._does, self._kv_role = name, (class_name,), does, kv_role

    def warnings(self, ask: Ask) -> list[str]:
        if not (ask.prefill.replicas and ask.decode.replicas):
            return []
        return [
            (
                f"{self.class_names[0]} {self._does}: it does not disaggregate, decode computes prompts itself unless a store that both "
                f"roles share has them; `connector: {{name: multi, connectors: [nixl, {self.name}]}}` does both"
            )
        ]

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:  # noqa: ARG002 - the interface's signature
        return self._config(ask, self._kv_role, ask.extra)


CONNECTORS = {
    one.name: one
    for one in (
        Caching("offloading", "OffloadingConnector", "keeps KV in host memory"),
        Caching("simple_cpu_offload", "SimpleCPUOffloadConnector", "keeps KV in host memory"),
        Caching("mooncake_store", "MooncakeStoreConnector", "keeps KV in a Mooncake store"),
        Caching("lmcache_mp", "LMCacheMPConnector", "keeps KV in an LMCache server"),
        Caching("flexkv", "FlexKVConnectorV1", "keeps KV in FlexKV"),
        Caching("hf3fs", "HF3FSKVConnector", "keeps KV in 3FS files"),
        Caching("umbp_store", "UMBPStoreConnector", "keeps KV in a UMBP store"),
        Caching("hisparse", "HiSparseConnector", "keeps sparse KV in host memory"),
        Caching("decode_bench", "DecodeBenchConnector", "fills the cache with made-up KV, for benchmarks"),
        Caching("hidden_states", "ExampleHiddenStatesConnector", "writes hidden states to files", "kv_producer"),
    )
}
