"""All connectors by name. A connector is imported when it is chosen; a new one is a new file and a line here."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.connectors.base import Connector

_MODULES: dict[str, str] = {
    "nixl": "pdctl.connectors.nixl",
    "nixlconnector": "pdctl.connectors.nixl",
    "nixlpullconnector": "pdctl.connectors.nixl",
    "p2p_nccl": "pdctl.connectors.p2p_nccl",
    "p2pnccl": "pdctl.connectors.p2p_nccl",
    "p2pncclconnector": "pdctl.connectors.p2p_nccl",
}
SHORT_NAMES = ("nixl", "p2p_nccl")


class UnknownConnector(LookupError):
    """No connector has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        near = difflib.get_close_matches(name.lower().replace("-", "_"), _MODULES, n=1, cutoff=0.6)
        self.nearest = (
            near[0]
            if near and near[0] in SHORT_NAMES
            else importlib.import_module(_MODULES[near[0]]).CONNECTOR.name
            if near
            else None
        )
        """Short name of the nearest known connector, if one is near."""


def find_connector(name: str) -> Connector:
    """Return the connector with this short name or class name, in any case. Raises UnknownConnector."""
    module = _MODULES.get(name.lower().replace("-", "_"))
    if module is None:
        raise UnknownConnector(name)
    connector: Connector = importlib.import_module(module).CONNECTOR
    return connector
