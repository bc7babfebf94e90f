"""ExampleConnector: KV as files in a directory that both roles see; slow, needs nothing (vLLM 0.9.2 on)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl.connectors.base import KV_ROLES, Ask, Connector, Peer, RuleProblem, Seat
from pdctl.connectors.prefill import prefill_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.vllm.version import Version

_PATH = "shared_storage_path"


class PromptHandOver:
    """The KV is found by the prompt's own tokens: prefill runs first, and nothing is passed on."""

    one_prompt_per_request = False
    plain_requests_kill = False
    names_kv = False

    def request_id(self, unique: str, producer: Peer, consumer: Peer) -> str:  # noqa: ARG002 - the interface's signature
        return unique

    def prefill_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return prefill_body(body, None)

    def decode_params(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002 - the interface's signature
        return None


class Example(Connector):
    """See `pdctl.connectors.base.Connector`. Facts: v1/shared_storage_connector.py, later v1/example_connector.py (0.22.1:104, 430)."""

    name = "example"
    class_names = ("ExampleConnector", "SharedStorageConnector")
    handover = PromptHandOver()
    protocol = "prefill, then decode: the KV is found by the prompt"

    def class_name(self, version: Version) -> str:
        """It was renamed with 0.13.0."""
        return "SharedStorageConnector" if version < (0, 13, 0) else "ExampleConnector"

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found = []
        for role, shape in (("prefill", ask.prefill), ("decode", ask.decode)):
            for size in ("tp", "pp"):
                if getattr(shape, size) > 1:
                    what = f"ExampleConnector's files do not name the rank: {size.upper()} ranks overwrite each other's"
                    found.append(RuleProblem((role, size), what, f"set {role}.{size}: 1"))
        if ask.hosts > 1 and not ask.extra.get(_PATH):
            what = "ExampleConnector needs a directory that all hosts share"
            found.append(
                RuleProblem(
                    ("connector",), what, f"write connector: {{name: example, extra: {{{_PATH}: /shared/dir}}}}"
                )
            )
        return found

    def warnings(self, ask: Ask) -> list[str]:  # noqa: ARG002 - the interface's signature
        return ["ExampleConnector writes every layer to files and never removes them: for trying out, not for serving"]

    def kv_transfer_config(self, ask: Ask, seat: Seat) -> dict[str, Any]:
        # One folder for each model: a prompt's key does not say whose KV it is.
        folder = re.sub(r"[^A-Za-z0-9.]+", "-", ask.model).strip("-") or "model"
        return self._config(ask, KV_ROLES[seat.role], {_PATH: f"/tmp/pdctl-kv-{folder}", **ask.extra})  # noqa: S108 - vLLM's own default is /tmp


CONNECTOR = Example()
