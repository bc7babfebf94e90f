"""Keep the last verification with the cluster, so that `status` can say when KV was last seen to move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.cluster.reach import Reach
    from pdctl.plan.model import Plan


def note_verification(
    plan: Plan, reach: Reach, report: Mapping[str, Any], headline: str, *, ok: bool, now: float
) -> None:
    """Write the outcome into the cluster's record on all its hosts; a host that doesn't answer is left out."""
    note = {"verify": {"ok": ok, "headline": headline, "at": now, "report": dict(report)}}
    reach.each(lambda client: client.note(plan.cluster, note))
