"""Engines written by hand whose ports overlap (case 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pdctl.connectors.judge import judge
from tests.pairs import nixl, only, p2p, pair


def test_p2p_ranges_that_overlap_name_both_owners() -> None:
    misfit = only(judge(pair(p2p("producer", 21000, 8100), p2p("consumer", 21001, 8200), tp=2)))
    assert (misfit.instance, misfit.fatal, misfit.fix) == ("D", True, "set kv_port of D to 21002")
    for said in ("21000-21001 of P", "21001-21002 of D", "overlap at 21001"):
        assert said in misfit.what


def test_p2p_ranges_of_different_hosts_never_meet() -> None:
    p, d = pair(p2p("producer", 21000, 8100), p2p("consumer", 21001, 8200), tp=2)
    assert judge([p, replace(d, host="b")]) == []


def test_ports_written_as_text_and_vllms_default_count() -> None:
    p, d = p2p("producer", 0, 8100), p2p("consumer", 0, 8200)
    del p["kv_port"]
    misfit = only(judge(pair(p, {**d, "kv_port": "14579"})))
    assert "overlap at 14579" in misfit.what


@pytest.mark.parametrize(
    ("version", "overlap"), [("0.9.2", True), ("0.10.2", True), ("0.11.2", False), ("0.22.1", False)]
)
def test_the_version_decides_how_wide_a_nixl_side_channel_is(version: str, overlap: bool) -> None:
    found = judge(pair(nixl("producer"), nixl("consumer"), version, tp=4, p_side=5600, d_side=5602))
    if not overlap:
        assert found == []
        return
    misfit = only(found)
    for said in ("5600-5603 of P", "5602-5605 of D", "overlap at 5602-5603", "hangs"):
        assert said in misfit.what
    assert misfit.fix == "set VLLM_NIXL_SIDE_CHANNEL_PORT of D to 5604"


def test_two_nixl_engines_without_a_side_channel_port_share_vllms_default() -> None:
    misfit = only(judge(pair(nixl("producer"), nixl("consumer"), p_side=None, d_side=None)))
    assert "overlap at 5600" in misfit.what


def test_an_api_port_inside_anothers_kv_range() -> None:
    p, d = pair(p2p("producer", 21000, 8100), p2p("consumer", 22000, 21001), tp=2)
    misfit = only(judge([p, replace(d, http_port=21001)]))
    assert (misfit.instance, misfit.fix) == ("D", "set --port of D to 21002")
    assert "KV ports 21000-21001 of P" in misfit.what
    assert "API port 21001 of D" in misfit.what


def test_the_port_that_is_proposed_is_free() -> None:
    p, d = pair(p2p("producer", 21000, 8100), p2p("consumer", 21001, 21003), tp=2)
    misfits = judge([p, replace(d, http_port=21003)])
    assert only(misfits).fix == "set kv_port of D to 21004"


def test_http_port_must_be_the_api_port() -> None:
    misfit = only(judge(pair(p2p("producer", 21000, 8100), p2p("consumer", 22000, 8100))))
    assert (misfit.instance, misfit.fatal) == ("D", True)
    assert "8100" in misfit.what
    assert "must equal 8200" in misfit.what
    assert '"http_port": "8200"' in misfit.fix


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"proxy_ip": "h", "proxy_port": 30001, "http_port": "8200"}, "proxy_port"),
        ({"proxy_ip": "h", "proxy_port": "30001"}, "http_port is missing"),
    ],
)
def test_extra_config_that_ends_every_worker(extra: dict[str, Any], says: str) -> None:
    d = p2p("consumer", 22000, 8200, kv_connector_extra_config=extra)
    misfit = only(judge(pair(p2p("producer", 21000, 8100), d)))
    assert says in misfit.what
    assert misfit.fatal
