"""Engines written by hand whose configs do not fit each other (cases 6 and 7)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdctl.connectors.judge import HandWritten, judge
from tests.pairs import nixl, only, p2p, pair

# - what fits -


@pytest.mark.parametrize("version", ["0.10.2", "0.17.1", "0.22.1", "0.23.0"])
def test_a_right_p2p_pair_fits(version: str) -> None:
    assert judge(pair(p2p("producer", 21000, 8100), p2p("consumer", 21002, 8200), version, tp=2)) == []


@pytest.mark.parametrize("version", ["0.10.2", "0.22.1", "0.33.0"])
def test_a_right_nixl_pair_fits_as_mapping_and_as_json(version: str) -> None:
    assert judge(pair(nixl("producer"), json.dumps(nixl("consumer")), version, tp=4)) == []


def test_plain_engines_fit() -> None:
    assert judge([HandWritten("A", "aggregated", "0.22.1", 8000, 1, "a", None)]) == []


# - case 6: fields and releases -

TUTORIAL = {"kv_rank": 0, "kv_parallel_size": 2, "kv_buffer_size": 1e9}


@pytest.mark.parametrize(
    ("version", "fatal"), [("0.22.1", False), ("0.29.0", False), ("0.32.0", True), ("0.33.0", True)]
)
def test_useless_fields_are_fatal_from_0_32_on_and_all_named_at_once(version: str, fatal: bool) -> None:
    found = judge(pair(nixl("producer", **TUTORIAL), nixl("consumer"), version))
    assert [(one.instance, one.fatal, one.fix) for one in found] == [
        ("P", fatal, f"remove `{key}`") for key in TUTORIAL
    ]
    assert all(("is fatal" if fatal else "has no effect") in one.what for one in found)


def test_p2p_reads_its_port_and_buffer_and_nixl_does_not() -> None:
    assert judge(pair(p2p("producer", 21000, 8100, kv_buffer_size="1e9"), p2p("consumer", 22000, 8200))) == []
    misfit = only(judge(pair(nixl("producer", kv_port=21000), nixl("consumer"))))
    assert (misfit.fix, misfit.fatal) == ("remove `kv_port`", False)


@pytest.mark.parametrize(("version", "fatal"), [("0.11.2", False), ("0.17.1", True)])
def test_a_field_that_no_release_has(version: str, fatal: bool) -> None:
    d = nixl("consumer", kv_conector_extra_config={})
    misfit = only(judge(pair(nixl("producer"), d, version)))
    assert (misfit.fix, misfit.fatal) == ("remove `kv_conector_extra_config`", fatal)
    assert ("near: `kv_connector_extra_config`" in misfit.what) is fatal


@pytest.mark.parametrize(
    ("version", "says", "fix"), [("0.14.1", "hangs", "nixl"), ("0.24.0", "0.23.0", "NixlConnector")]
)
def test_releases_without_a_working_p2p_nccl(version: str, says: str, fix: str) -> None:
    found = judge(pair(p2p("producer", 21000, 8100), p2p("consumer", 22000, 8200), version))
    whats = [one for one in found if says in one.what]
    assert whats
    assert all(one.fatal and fix in one.fix for one in whats)


def test_the_connectors_own_rules_hold_for_pairs() -> None:
    p, d = pair(p2p("producer", 21000, 8100), p2p("consumer", 22000, 8200))
    misfit = only(judge([p, replace(d, tp=2)]))
    assert misfit.instance == "D"
    assert "same TP" in misfit.what


# - case 7: one half -


def test_neither_half_has_a_config() -> None:
    found = judge(pair(None, None))
    assert [(one.instance, one.fatal) for one in found] == [("P", True), ("D", True)]
    assert all("ordinary engine" in one.what for one in found)


def test_one_half_without_a_config() -> None:
    misfit = only(judge(pair(nixl("producer"), None)))
    assert (misfit.instance, misfit.fatal) == ("D", True)
    assert "consumer D has no --kv-transfer-config" in misfit.what
    assert '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}' in misfit.fix


def test_different_connectors() -> None:
    lmcache = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_consumer"}
    misfit = only(judge(pair(nixl("producer"), lmcache)))
    assert (misfit.instance, misfit.fatal) == ("D", True)
    assert "P has NixlConnector and D LMCacheConnectorV1" in misfit.what
    assert '"kv_connector": "NixlConnector"' in misfit.fix


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
def test_nixl_pull_is_nixl_and_push_is_not(version: str) -> None:
    pull = {"kv_connector": "NixlPullConnector", "kv_role": "kv_consumer"}
    assert judge(pair(nixl("producer"), pull, version)) == []
    push = {"kv_connector": "NixlPushConnector", "kv_role": "kv_consumer"}
    assert "cannot hand KV over" in only(judge(pair(nixl("producer"), push, version))).what


def test_both_producers() -> None:
    misfit = only(judge(pair(nixl("producer"), nixl("producer"))))
    assert (misfit.instance, misfit.fix, misfit.fatal) == ("D", 'write `"kv_role": "kv_consumer"`', True)
    assert "meant as consumer" in misfit.what
    assert "kv_producer" in misfit.what


@pytest.mark.parametrize("role", [None, "consumer"])
def test_role_missing_or_none_of_vllms(role: str | None) -> None:
    config = {"kv_connector": "NixlConnector", **({"kv_role": role} if role else {})}
    misfit = only(judge(pair(nixl("producer"), config)))
    assert (misfit.instance, misfit.fix, misfit.fatal) == ("D", 'write `"kv_role": "kv_consumer"`', True)


def test_kv_both_is_a_producer_to_p2p_and_old_fashioned_to_nixl() -> None:
    d = p2p("both", 22000, 8200)
    assert only(judge(pair(p2p("producer", 21000, 8100), d))).fatal
    assert judge(pair(nixl("producer"), nixl("both"), "0.22.1")) == []
    assert not only(judge(pair(nixl("producer"), nixl("both"), "0.33.0"))).fatal


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NixlConector", "NixlConnector"),
        ("nixl", "NixlConnector"),
        ("P2PNcclConnector", "P2pNcclConnector"),
        ("LMCacheConnector", "LMCacheConnectorV1"),
        ("Mooncake", "MooncakeConnector"),
    ],
)
def test_a_misspelt_connector_gets_the_nearest_name(written: str, meant: str) -> None:
    config = {"kv_connector": written, "kv_role": "kv_consumer"}
    found = judge(pair(nixl("producer"), config))
    misfit = next(one for one in found if written in one.what)
    assert (misfit.instance, misfit.fix, misfit.fatal) == ("D", f'write `"kv_connector": "{meant}"`', True)
    if meant == "NixlConnector":
        assert found == [misfit], "a slip is no different connector"


def test_a_connector_of_the_users_own_module_is_no_slip() -> None:
    own = {"kv_connector": "NixlConector", "kv_connector_module_path": "my.module", "kv_port": 1}
    assert judge(pair({**own, "kv_role": "kv_producer"}, {**own, "kv_role": "kv_consumer"})) == []


def test_different_releases() -> None:
    p, d = pair(nixl("producer"), nixl("consumer"))
    assert "0.22.1 and D 0.33.0" in only(judge([p, replace(d, version="0.33.0")])).what


@pytest.mark.parametrize(
    ("text", "says"), [("{'kv_role': 1}", "character 2"), ("[]", "no JSON object"), ("{}", "names no connector")]
)
def test_configs_that_cannot_be_read(text: str, says: str) -> None:
    misfit = next(one for one in judge(pair(nixl("producer"), text)) if one.instance == "D")
    assert says in misfit.what
    assert misfit.fatal


def test_a_version_that_is_none() -> None:
    p, d = pair(nixl("producer"), nixl("consumer"))
    assert "no vLLM version" in only(judge([p, replace(d, version="newest")])).what
