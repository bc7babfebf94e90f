"""NixlPushConnector: prefill writes the KV cache into decode's memory (vLLM 0.24.0 on)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdctl.connectors.base import Ask, HandOverError, RuleProblem
from pdctl.connectors.nixl import Nixl, NixlHandOver, buffer_problems, kv_head_problems, tp_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class NixlPushHandOver(NixlHandOver):
    """As for pull, but the blocks are decode's own: prefill matches both legs by X-Request-Id, which must be the same on both.

    vLLM 0.33.0, v1/nixl/push_scheduler.py:177-201 and utils.py:65.
    """

    def decode_params(self, answer: Mapping[str, Any]) -> dict[str, Any] | None:
        params = answer.get("kv_transfer_params")
        if not isinstance(params, dict):
            raise HandOverError(
                "the producer's answer has no kv_transfer_params: it computed the prompt and kept no KV for a peer"
            )
        missing = [key for key in _NEEDED if not params.get(key)]
        if missing:
            raise HandOverError(f"the producer's kv_transfer_params lack {', '.join(missing)}")
        return {**params, "do_remote_prefill": True, "do_remote_decode": False}


class NixlPush(Nixl):
    """See `pdctl.connectors.base.Connector`."""

    name = "nixl_push"
    class_names = ("NixlPushConnector",)
    handover = NixlPushHandOver()
    protocol = "prefill, then decode with prefill's kv_transfer_params; one X-Request-Id on both"
    simulated = False

    def problems(self, ask: Ask) -> list[RuleProblem]:
        found = [*tp_problems(ask), *_pp_problems(ask), *kv_head_problems(ask), *buffer_problems(ask)]
        if str(ask.extra.get("bidirectional_kv_xfer", "")).lower() in ("true", "1"):
            what = "NixlPushConnector has no bidirectional transfer"
            found.append(
                RuleProblem(
                    ("connector", "extra", "bidirectional_kv_xfer"), what, "remove it, or use `connector: nixl`"
                )
            )
        return found


def _pp_problems(ask: Ask) -> list[RuleProblem]:
    """vLLM 0.26.0, v1/nixl/base_worker.py: a consumer with stages raises; up to there producers with stages were not supported."""
    found = []
    if ask.decode.pp > 1:
        found.append(
            RuleProblem(
                ("decode", "pp"), "NixlPush takes no pipeline-parallel decode replicas", "set decode.pp: 1 and use tp"
            )
        )
    if ask.prefill.pp > 1 and ask.version < (0, 26, 0):
        what = "NixlPush carries KV of pipeline-parallel prefill replicas from vLLM 0.26 on"
        found.append(RuleProblem(("prefill", "pp"), what, "set prefill.pp: 1 and use tp, or use a newer vLLM"))
    return found


CONNECTOR = NixlPush()
