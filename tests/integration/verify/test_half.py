"""Only one half is disaggregated (case 7): everything answers, right even, and no KV moves. Only a probe shows it."""

from __future__ import annotations

from dataclasses import replace

from pdctl.verify import verify_cluster
from tests.conftest import Pdctl, eventually
from tests.integration.verify.clusters import Running, healthy, planned, start, without_connector


def test_a_consumer_without_a_connector_is_found_out(running: Running) -> None:
    plan = planned("nixl")
    start(running, plan.instance("producer-0"), without_connector(plan.instance("consumer-0")), plan.instance("proxy"))
    report = verify_cluster(plan, timeout_s=10, seed=1)
    (pair,) = report.pairs
    assert report.exit_code == 5
    assert (pair.verdict, pair.tokens) == ("not moved", 0)
    assert "0 tokens came from a peer" in pair.reason


def test_engines_that_others_started_are_probed_from_the_command_line(running: Running, pdctl: Pdctl) -> None:
    plan = planned("nixl")
    producer, consumer, proxy = plan.instances
    start(running, producer, consumer, proxy)
    engines = ("--connector", "nixl", "--producer", producer.url, "--consumer", f"d={consumer.url}", "--url", proxy.url)
    good = pdctl.ok("verify", *engines, "--json").json
    assert good["ok"] is True
    assert (good["pairs"][0]["producer"], good["pairs"][0]["consumer"]) == ("producer-0", "d")
    killed = running.pop(1)
    killed.kill()
    killed.wait()
    eventually(lambda: not healthy(consumer.url), 10)
    start(running, without_connector(consumer))
    half = pdctl("verify", *engines)
    assert half.code == 5
    assert "0 tokens came from a peer" in half.out
    assert pdctl("verify", "--connector", "nixl", "--producer", producer.url).code == 2
    assert pdctl("verify", "--connector", "nixel", "--producer", producer.url, "--consumer", consumer.url).code == 2


def test_a_producer_without_a_connector_is_found_out(running: Running) -> None:
    plan = planned("nixl")
    start(running, without_connector(plan.instance("producer-0")), plan.instance("consumer-0"))
    report = verify_cluster(replace(plan, instances=plan.instances[:2]), timeout_s=10, seed=1)
    assert report.exit_code == 5
    assert report.pairs[0].verdict == "error"
    assert "kept no KV" in report.pairs[0].reason


def test_a_consumer_that_hangs_is_named_within_the_time_limit(running: Running) -> None:
    """P2pNccl: the producer never sends; the consumer's /health stays 200."""
    plan = planned("p2p_nccl")
    producer = plan.instance("producer-0")
    start(
        running,
        replace(producer, argv=(*producer.argv, "--sim-drop-kv")),
        plan.instance("consumer-0"),
        plan.instance("proxy"),
    )
    report = verify_cluster(plan, timeout_s=2, seed=1)
    assert report.exit_code == 5
    assert "consumer-0 did not answer within 2 s" in report.pairs[0].reason
    assert healthy(plan.instance("consumer-0").url)


def test_a_dead_engine_is_an_error_not_an_exception() -> None:
    report = verify_cluster(planned("nixl"), timeout_s=2, seed=1)
    assert (report.exit_code, report.pairs[0].verdict) == (5, "error")
    assert "consumer-0" in report.pairs[0].reason


def test_two_producers_and_three_consumers_are_all_covered(running: Running) -> None:
    plan = planned("nixl", layout="2P3D")
    start(running, *plan.instances)
    report = verify_cluster(plan, timeout_s=10)
    assert report.ok, report.headline
    assert [(one.producer, one.consumer) for one in report.pairs] == [
        ("producer-0", "consumer-0"),
        ("producer-1", "consumer-1"),
        ("producer-0", "consumer-2"),
    ]
    assert all(one.tokens == one.expected for one in report.pairs)
