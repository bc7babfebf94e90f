"""What the state of a cluster is, from what its hosts say."""

from __future__ import annotations

from typing import Any

import pytest

from pdctl.cluster.known import KnownCluster
from pdctl.cluster.observe import SILENT_S, Observed, SeenInstance, _mark_silent
from pdctl.cluster.report import status_document

KNOWN = KnownCluster("c", "/t.yaml", ())


def seen(name: str, state: str, **data: Any) -> SeenInstance:
    role = name.rsplit("-", 1)[0]
    return SeenInstance(name, role, "a", state, {"spec": {"role": role}, "state": state, **data})


def observed(*instances: SeenInstance) -> Observed:
    return Observed("c", instances, {}, {}, 100.0)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ({}, "stopped"),
        ({"producer-0": "ready", "consumer-0": "ready", "proxy": "ready"}, "ready"),
        ({"producer-0": "ready", "consumer-0": "ready", "consumer-1": "failed", "proxy": "ready"}, "degraded"),
        ({"producer-0": "ready", "consumer-0": "unhealthy", "proxy": "ready"}, "failed"),
        ({"producer-0": "failed", "consumer-0": "ready", "proxy": "ready"}, "failed"),
        ({"producer-0": "ready", "consumer-0": "ready", "proxy": "failed"}, "failed"),
        ({"producer-0": "ready", "consumer-0": "starting", "proxy": "starting"}, "starting"),
        ({"producer-0": "stopped", "consumer-0": "stopped", "proxy": "stopped"}, "stopped"),
        ({"aggregated-0": "ready", "aggregated-1": "restarting", "proxy": "ready"}, "degraded"),
        ({"producer-0": "unreachable", "consumer-0": "ready", "proxy": "ready"}, "failed"),
    ],
)
def test_cluster_state(states: dict[str, str], state: str) -> None:
    assert observed(*(seen(name, one) for name, one in states.items())).state == state


@pytest.mark.parametrize(("silent_s", "state"), [(SILENT_S + 15, "unhealthy"), (SILENT_S - 15, "ready")])
def test_an_engine_that_hangs_with_good_health_is_unhealthy(silent_s: float, state: str) -> None:
    load = {"instances": [{"name": "consumer-0", "silent_s": silent_s}]}
    instances = {one.name: one for one in (seen("consumer-0", "ready"), seen("proxy", "ready", load=load))}
    _mark_silent(instances)
    assert instances["consumer-0"].state == state
    if state == "unhealthy":
        assert "no byte for 75 s" in instances["consumer-0"].data["reason"]


def test_status_has_the_keys_of_the_contract() -> None:
    one = seen(
        "producer-0",
        "ready",
        pid=7,
        started_at=40.0,
        restarts=1,
        load={"running": 2.0, "waiting": 0.0, "kv_usage": 0.5},
    )
    document = status_document(observed(one, seen("consumer-0", "failed", exit_code=3, reason="exit code 3")), KNOWN)
    assert (document["schema"], document["cluster"], document["state"]) == (1, "c", "failed")
    first, second = document["instances"]
    wanted = {
        "pid": 7,
        "uptime_s": 60.0,
        "restarts": 1,
        "running": 2,
        "waiting": 0,
        "kv_usage": 0.5,
        "exit_code": None,
        "peers": "0/1",
    }
    assert {key: first[key] for key in wanted} == wanted
    assert (second["pid"], second["exit_code"], second["reason"]) == (None, 3, "exit code 3")
