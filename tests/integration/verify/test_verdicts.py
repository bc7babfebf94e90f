"""What verify says of pairs whose KV is used, ignored, damaged, dropped, or never asked for."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from pdctl.events import Event
from pdctl.plan.model import Plan
from pdctl.verify import VerifyReport, verify_cluster
from tests.conftest import eventually
from tests.integration.verify.clusters import Running, healthy, planned, start, without_connector


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def verified(running: Running, plan: Plan, timeout_s: float = 5) -> VerifyReport:
    start(running, *plan.instances)
    return verify_cluster(plan, timeout_s=timeout_s, seed=1)


@pytest.mark.parametrize(("connector", "equal"), [("nixl", True), ("p2p_nccl", False)])
def test_all_is_well(running: Running, connector: str, equal: bool) -> None:
    plan, heard = planned(connector), Heard()
    start(running, *plan.instances)
    report = verify_cluster(plan, timeout_s=10, seed=1, sink=heard)
    (pair,) = report.pairs
    assert (report.ok, report.exit_code, pair.verdict) == (True, 0, "used"), report.headline
    assert pair.tokens == pair.expected > 0
    assert report.headline.startswith(f"KV verified ({pair.tokens}/{pair.expected} tokens")
    if equal:
        assert report.equality is not None
        assert report.equality.equal == report.equality.prompts
        assert pair.failures == 0
        assert pair.bytes
    else:
        assert report.equality is None, "a P2pNccl engine dies of a plain request"
    assert all(healthy(one.url) for one in plan.instances), "a probe harms nobody"
    assert [event.text for event in heard.events] == ["producer-0 -> consumer-0: used"]
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_it_can_be_said_again_and_again(running: Running) -> None:
    """The same seed asks the same prompts: what an engine has seen must not change the verdict."""
    plan = planned("nixl")
    first = verified(running, plan)
    second = verify_cluster(plan, timeout_s=5, seed=1)
    assert first.ok
    assert second.ok
    assert second.pairs[0].tokens == first.pairs[0].tokens, "each report counts its own tokens"


@pytest.mark.parametrize("connector", ["nixl", "p2p_nccl"])
@pytest.mark.parametrize(("flag", "verdict"), [("sim-ignore-kv", "ignored"), ("sim-damage-kv", "damaged")])
def test_right_metrics_are_no_proof(running: Running, connector: str, flag: str, verdict: str) -> None:
    report = verified(running, planned(connector, decode=f"{flag}: true"))
    (pair,) = report.pairs
    assert (pair.verdict, report.exit_code) == (verdict, 5)
    assert pair.tokens, "the metrics say that KV came"
    assert "KV NOT verified: producer-0 -> consumer-0" in report.headline
    assert report.equality is None, "the proxy is not asked about what is broken already"


def test_dropped_kv_is_an_error_with_nixl(running: Running) -> None:
    report = verified(running, planned("nixl", prefill="sim-drop-kv: true"), timeout_s=3)
    assert (report.pairs[0].verdict, report.exit_code) == ("error", 5)
    assert "consumer-0 answered HTTP 500" in report.pairs[0].reason


def test_a_first_contact_that_fails_is_tried_again_and_said(running: Running) -> None:
    report = verified(running, planned("nixl", prefill="sim-drop-first: 2"))
    (pair,) = report.pairs
    assert (pair.verdict, report.exit_code) == ("used", 0)
    assert pair.tokens == pair.expected, "what failed before is in no figure"
    assert not pair.failures
    assert "consumer-0 answered HTTP 500" in pair.first_contact
    assert any("the first hand-over failed" in warning for warning in report.warnings)


def test_a_contact_that_fails_three_times_is_an_error(running: Running) -> None:
    report = verified(running, planned("nixl", prefill="sim-drop-first: 3"))
    assert (report.pairs[0].verdict, report.exit_code) == ("error", 5)


def test_dropped_kv_that_is_computed_again_has_not_moved(running: Running) -> None:
    plan = planned("nixl", prefill="sim-drop-kv: true")
    producer, consumer, _ = plan.instances
    at = consumer.argv.index("--kv-transfer-config") + 1
    config = json.dumps({**json.loads(consumer.argv[at]), "kv_load_failure_policy": "recompute"})
    hiding = replace(consumer, argv=(*consumer.argv[:at], config, *consumer.argv[at + 1 :]))
    report = verified(running, replace(plan, instances=(producer, hiding)))
    (pair,) = report.pairs
    assert (pair.verdict, pair.tokens, report.exit_code) == ("not moved", 0, 5)
    assert pair.failures, "the transfers failed, and every answer was 200"


def test_a_p2p_consumer_without_a_connector_is_found_out(running: Running) -> None:
    """The producer waits for a peer that is none, and pushes for ever."""
    plan = planned("p2p_nccl")
    producer, consumer, _ = plan.instances
    start(running, producer, without_connector(consumer))
    report = verify_cluster(replace(plan, instances=(producer, consumer)), timeout_s=1, seed=1)
    assert (report.pairs[0].verdict, report.exit_code) == ("error", 5)
    assert "producer-0 did not answer within 1 s" in report.pairs[0].reason
    assert "a dead peer" in report.pairs[0].reason


def test_a_consumer_that_died_is_one_bad_pair_of_three(running: Running) -> None:
    plan = planned("nixl", layout="2P3D")
    start(running, *plan.instances)
    at = [one.name for one in plan.instances].index("consumer-1")
    running[at].kill()
    running[at].wait()
    eventually(lambda: not healthy(plan.instances[at].url), 5)
    began = time.monotonic()
    report = verify_cluster(plan, timeout_s=3, seed=1)
    assert time.monotonic() - began < 10
    assert {pair.consumer: pair.verdict for pair in report.pairs} == {
        "consumer-0": "used",
        "consumer-1": "error",
        "consumer-2": "used",
    }
    assert report.exit_code == 5
    assert "producer-1 -> consumer-1" in report.headline


def test_both_sides_the_same_role(running: Running) -> None:
    """Two P2pNccl producers: the second never waits for KV, so nothing moves."""
    plan = planned("p2p_nccl")
    producer, consumer, _ = plan.instances
    at = consumer.argv.index("--kv-transfer-config") + 1
    config: dict[str, Any] = {**json.loads(consumer.argv[at]), "kv_role": "kv_producer"}
    wrong = replace(consumer, argv=(*consumer.argv[:at], json.dumps(config), *consumer.argv[at + 1 :]))
    start(running, producer, wrong)
    report = verify_cluster(replace(plan, instances=(producer, wrong)), timeout_s=10, seed=1)
    assert report.exit_code == 5
    assert (report.pairs[0].verdict, report.pairs[0].tokens) == ("not moved", 0), report.headline
