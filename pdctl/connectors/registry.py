"""All connectors by name. A connector is imported when it is chosen; a new one is a new file and a line here."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

from pdctl.vllm.releases import Span, known_releases, spans

if TYPE_CHECKING:
    from pdctl.connectors.base import Connector
    from pdctl.vllm.version import Version

_CLASSES: dict[str, tuple[str, ...]] = {
    "nixl": ("NixlConnector", "NixlPullConnector"),
    "nixl_push": ("NixlPushConnector",),
    "p2p_nccl": ("P2pNcclConnector",),
    "mooncake": ("MooncakeConnector",),
    "moriio": ("MoRIIOConnector",),
    "lmcache": ("LMCacheConnectorV1",),
    "example": ("ExampleConnector", "SharedStorageConnector"),
    "multi": ("MultiConnector",),
    "offloading": ("OffloadingConnector",),
    "simple_cpu_offload": ("SimpleCPUOffloadConnector",),
    "mooncake_store": ("MooncakeStoreConnector",),
    "lmcache_mp": ("LMCacheMPConnector",),
    "flexkv": ("FlexKVConnectorV1",),
    "hf3fs": ("HF3FSKVConnector",),
    "umbp_store": ("UMBPStoreConnector",),
    "hisparse": ("HiSparseConnector",),
    "decode_bench": ("DecodeBenchConnector",),
    "hidden_states": ("ExampleHiddenStatesConnector",),
}
"""Short name -> vLLM's names; a test holds them against the modules and against every name in releases.json."""
_ALIASES = {"nixl_pull": "nixl", "p2pnccl": "p2p_nccl", "shared_storage": "example", "lmcache_v1": "lmcache"}
SHORT_NAMES = tuple(_CLASSES)
PD_NAMES = ("nixl", "nixl_push", "p2p_nccl", "mooncake", "moriio", "lmcache", "example", "multi")
"""Those that hand KV from prefill to decode."""
_BY_NAME = {
    **{name: name for name in _CLASSES},
    **_ALIASES,
    **{class_name.lower(): name for name, class_names in _CLASSES.items() for class_name in class_names},
}


class UnknownConnector(LookupError):
    """No connector has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        near = difflib.get_close_matches(name.lower().replace("-", "_"), _BY_NAME, n=1, cutoff=0.6)
        self.nearest = _BY_NAME[near[0]] if near else None
        """Short name of the nearest known connector, if one is near."""


def find_connector(name: str) -> Connector:
    """Return the connector with this short name or class name, in any case. Raises UnknownConnector."""
    short = _BY_NAME.get(name.lower().replace("-", "_"))
    if short is None:
        raise UnknownConnector(name)
    if short == "multi":
        from pdctl.connectors.multi import Multi

        return Multi()
    if short in PD_NAMES:
        connector: Connector = importlib.import_module(f"pdctl.connectors.{short}").CONNECTOR
        return connector
    from pdctl.connectors.caching import CONNECTORS

    return CONNECTORS[short]


def connector_spans(connector: Connector) -> tuple[Span, ...]:
    """Return the releases that have it under any of its names, oldest first, as few spans as say it."""
    known = known_releases()
    having = [one for one in known if any(_has(spans("connectors", name), one) for name in connector.class_names)]
    runs: list[list[Version]] = []
    for one in having:
        if runs and known.index(runs[-1][-1]) + 1 == known.index(one):
            runs[-1].append(one)
        else:
            runs.append([one])
    return tuple(Span(run[0], None if run[-1] == known[-1] else run[-1]) for run in runs)


def _has(found: tuple[Span, ...], version: Version) -> bool:
    return any(span.first <= version and (span.last is None or version <= span.last) for span in found)


def newest_with(connector: Connector) -> Version | None:
    """Return the last release that has it; None if the newest known one has."""
    lasts = [span.last for span in connector_spans(connector)]
    return None if None in lasts else max(last for last in lasts if last is not None)
