"""Verify a cluster of ours: probe it, ask its logs about what failed, and keep the outcome with it for `status`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pdctl.cluster.logs import explain
from pdctl.verify.report import FINE, VerifyReport
from pdctl.verify.run import verify_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pdctl.cluster.reach import Reach
    from pdctl.events import Sink
    from pdctl.plan.model import Plan


def verify_and_record(
    plan: Plan, reach: Reach, *, environ: Mapping[str, str], timeout_s: float = 120.0, sink: Sink | None = None
) -> VerifyReport:
    """Verify; the API key comes from the variables that the plan's proxy names. A host that doesn't answer gets no record."""
    names = plan.proxy.secret_env if plan.proxy else ()
    key = next((environ[name] for name in names if environ.get(name)), None)
    began = time.time()
    dial = reach.dial if any(host.ssh is not None for host in plan.hosts) else None
    report = verify_cluster(plan, api_key=key, timeout_s=timeout_s, sink=sink, dial=dial)
    report = replace(report, warnings=(*report.warnings, *_said_by_logs(plan, reach, report, began)))
    note = {"verify": {"ok": report.ok, "headline": report.headline, "at": time.time(), "report": report.to_dict()}}
    reach.each(lambda client: client.note(plan.cluster, note))
    return report


def _said_by_logs(plan: Plan, reach: Reach, report: VerifyReport, since: float) -> list[str]:
    """Return what the engines of bad pairs logged during the verification: an HTTP status alone names no cause."""
    names = dict.fromkeys(
        name for pair in report.pairs if pair.verdict not in FINE for name in (pair.producer, pair.consumer)
    )
    placed: dict[str, list[str]] = {}
    for name in names:
        placed.setdefault(plan.instance(name).host, []).append(name)
    said: list[str] = []
    for one in explain(reach, plan.cluster, placed, since=since):
        known = [(one.cause.cause, one.cause.fix)] if one.cause is not None and one.cause.name else []
        known += [(symptom.cause, symptom.fix) for symptom in one.symptoms]
        said += [f"{one.instance} logged: {cause}{f' ({fix})' if fix else ''}" for cause, fix in known]
    return said
