"""`pdctl check` and `pdctl connectors` as a user calls them: the pair that tutorials show, and cases 4, 6 and 7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pdctl

TUTORIAL = {
    "kv_connector": "P2pNcclConnector",
    "kv_role": "kv_producer",
    "kv_rank": 0,
    "kv_parallel_size": 2,
    "kv_buffer_size": "1e1",
    "kv_port": "21001",
    "kv_connector_extra_config": {"proxy_ip": "0.0.0.0", "proxy_port": 30001, "http_port": "8109"},
}
"""What a much-read post writes for a prefill engine on port 8209."""


def check(pdctl: Pdctl, *args: str, code: int) -> list[dict[str, Any]]:
    done = pdctl("check", *args, "--json")
    assert done.code == code, done.out + done.err
    assert done.json["ok"] is (code == 0)
    found: list[dict[str, Any]] = done.json["findings"]
    return found


def said(findings: list[dict[str, Any]], *, fatal: bool) -> str:
    return "\n".join(one["what"] for one in findings if one["fatal"] is fatal)


def test_each_wrong_claim_of_the_tutorial_is_found(pdctl: Pdctl) -> None:
    config = json.dumps(TUTORIAL)
    found = check(
        pdctl, "--config", config, "--vllm", "0.22.1", "--role", "producer", "--port", "8209", "--tp", "2", code=4
    )
    fatal, notes = said(found, fatal=True), said(found, fatal=False)
    assert len(found) == 8
    for one in (
        "http_port in the extra config is 8109, the API port is 8209",
        "proxy_port in the extra config is no string",
    ):
        assert one in fatal
    for one in (
        "`kv_rank` has no effect", "`kv_parallel_size` has no effect", "kv_buffer_size 1e1 is bytes, not blocks",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 must be in its environment", "proxy_ip 0.0.0.0", "every rank pins 32 GB",
    ):  # fmt: skip
        assert one in notes
    assert all(one["fix"] for one in found)


def test_the_tutorials_pair_on_one_host(pdctl: Pdctl) -> None:
    """Equal KV ports clash there, and a buffer of one byte is a slow consumer."""
    consumer = json.dumps({**TUTORIAL, "kv_role": "kv_consumer", "kv_rank": 1, "kv_buffer_size": 1})
    pair = ("--config", json.dumps(TUTORIAL), "--config", consumer, "--port", "8209", "--port", "8109", "--tp", "2")
    found = check(pdctl, *pair, "--vllm", "0.23.0", code=4)
    assert "KV ports 21001-21002 of producer-0 and KV ports 21001-21002 of consumer-1 overlap" in said(
        found, fatal=True
    )
    assert "spills every received tensor" in said(found, fatal=False)
    apart = check(pdctl, *pair, "--vllm", "0.23.0", "--host", "a", "--host", "b", code=4)
    assert "overlap" not in said(apart, fatal=True)


@pytest.mark.parametrize(("version", "says"), [("0.14.1", "hangs"), ("0.24.0", "vLLM 0.24.0 has no P2pNcclConnector")])
def test_the_tutorial_on_releases_where_it_cannot_work(pdctl: Pdctl, version: str, says: str) -> None:
    found = check(pdctl, "--config", json.dumps(TUTORIAL), "--vllm", version, "--port", "8209", code=4)
    assert says in said(found, fatal=True)


def test_the_tutorials_whole_command(pdctl: Pdctl, tmp_path: Path) -> None:
    command = tmp_path / "prefill.sh"
    command.write_text(
        "vllm_PD_ROLE=producer VLLM_USE_V1=1 \\\n python3 -m vllm.entrypoints.openai.api_server --model m --port 8209 "
        f"--tensor-parallel-size 2 \\\n --kv-transfer-config '{json.dumps(TUTORIAL)}'\n"
    )
    found = check(pdctl, "--serve", f"@{command}", "--vllm", "0.22.1", code=4)
    fatal, notes = said(found, fatal=True), said(found, fatal=False)
    assert "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 must be in its environment" in fatal
    assert "the API port is 8209" in fatal
    assert "VLLM_USE_V1: vLLM 0.22.1 does not read it" in notes
    assert "vllm_PD_ROLE: vLLM 0.22.1 does not read it, nor does any other" in notes


@pytest.mark.parametrize("version", ["0.22.1", "0.23.0"])
def test_the_same_intent_as_a_topology_works(pdctl: Pdctl, version: str) -> None:
    """And what pdctl makes of it passes the same judgement."""
    file = pdctl.cwd / "pair.yaml"
    file.write_text(
        f"model: m\nlayout: 1P1D\ntp: 2\nconnector: p2p_nccl\nengine: {{version: {version}}}\nhosts: [{{name: local, gpus: 4}}]\n"
    )
    plan = pdctl.ok("plan", str(file), "--format", "json").json
    assert plan["gpus"]["formula"] == "(1 + 1) x 2 x 1 = 4"
    engines = [one for one in plan["instances"] if one["kv_transfer_config"]]
    assert {one["role"] for one in engines} == {"producer", "consumer"}
    args: list[str] = []
    for one in engines:
        extra = one["kv_transfer_config"]["kv_connector_extra_config"]
        assert extra["http_port"] == str(one["ports"]["http"])
        assert isinstance(extra["proxy_port"], str)
        assert one["env"]["VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"] == "1"
        env = " ".join(f"{name}={value}" for name, value in one["env"].items())
        argv = " ".join(f"'{word}'" for word in one["argv"])
        args += ["--serve", f"{env} {argv}"]
    assert check(pdctl, *args, "--vllm", version, code=0) == []


# - case 4 -


def p2p(role: str, kv_port: int, http_port: int) -> str:
    extra = {"proxy_ip": "10.0.0.1", "proxy_port": "30001", "http_port": str(http_port), "mem_pool_size_gb": "4"}
    return json.dumps(
        {
            "kv_connector": "P2pNcclConnector",
            "kv_role": f"kv_{role}",
            "kv_port": kv_port,
            "kv_connector_extra_config": extra,
        }
    )


def test_kv_ranges_that_overlap_by_one(pdctl: Pdctl) -> None:
    pair = ("--config", p2p("producer", 21000, 8100), "--config", p2p("consumer", 21001, 8200))
    found = check(pdctl, *pair, "--port", "8100", "--port", "8200", "--tp", "2", "--vllm", "0.22.1", code=4)
    assert "21000-21001" in said(found, fatal=True)
    assert "21001-21002" in said(found, fatal=True)
    assert "overlap at 21001 " in said(found, fatal=True)


@pytest.mark.parametrize(("version", "code"), [("0.10.2", 4), ("0.22.1", 0)])
def test_the_release_decides_how_wide_nixls_side_channel_is(pdctl: Pdctl, version: str, code: int) -> None:
    configs = [
        json.dumps({"kv_connector": "NixlConnector", "kv_role": f"kv_{role}"}) for role in ("producer", "consumer")
    ]
    ports = ("--side-channel-port", "5600", "--side-channel-port", "5602")
    check(pdctl, "--config", configs[0], "--config", configs[1], *ports, "--tp", "4", "--vllm", version, code=code)


def test_an_api_port_inside_the_others_kv_ports(pdctl: Pdctl) -> None:
    pair = ("--config", p2p("producer", 8200, 8100), "--config", p2p("consumer", 21001, 8200))
    found = check(pdctl, *pair, "--port", "8100", "--port", "8200", "--vllm", "0.22.1", code=4)
    assert "producer-0" in said(found, fatal=True)
    assert "consumer-1" in said(found, fatal=True)


# - case 6 -


@pytest.mark.parametrize(("version", "code"), [("0.22.1", 0), ("0.33.0", 4)])
def test_fields_of_every_tutorial(pdctl: Pdctl, version: str, code: int) -> None:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "kv_rank": 0,
        "kv_parallel_size": 2,
        "kv_buffer_size": 1e9,
    }
    found = check(pdctl, "--config", json.dumps(config), "--vllm", version, code=code)
    assert [one["fix"] for one in found] == ["remove `kv_rank`", "remove `kv_parallel_size`", "remove `kv_buffer_size`"]
    assert {one["fatal"] for one in found} == {code == 4}


# - case 7 -


@pytest.mark.parametrize(
    ("producer", "consumer", "says"),
    [
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', "none", "has no --kv-transfer-config"),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_consumer"}', "cannot hand KV over"),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', "is meant as consumer"),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', '{"kv_connector":"NixlConnector"}', "no kv_role"),
        ('{"kv_connector":"NixlConector","kv_role":"kv_producer"}', '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}', "vLLM has no connector `NixlConector`"),
    ],
)  # fmt: skip
def test_only_one_half_is_disaggregated(pdctl: Pdctl, producer: str, consumer: str, says: str) -> None:
    roles = ("--role", "prefill", "--role", "decode", "--side-channel-port", "5600", "--side-channel-port", "5601")
    found = check(pdctl, "--config", producer, "--config", consumer, *roles, "--vllm", "0.22.1", code=4)
    assert says in said(found, fatal=True)
    assert all(one["fix"] for one in found)


# - what is no question -


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "nothing to check"),
        (("--config", "@missing.json"), "missing.json"),
        (("--config", "{}", "--vllm", "main"), "--vllm"),
        (("--config", "{}", "--role", "boss"), "boss"),
        (("--config", "{}", "--port", "1", "--port", "2"), "--port"),
        (("--serve", "vllm serve 'm"), "split into words"),
    ],
)
def test_a_wrong_question_is_exit_2_and_one_sentence(pdctl: Pdctl, args: tuple[str, ...], says: str) -> None:
    done = pdctl("check", *args)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


def test_the_table_of_connectors(pdctl: Pdctl) -> None:
    rows = {one["name"]: one for one in pdctl.ok("connectors", "--vllm", "0.23.0", "--json").json["connectors"]}
    after = {one["name"]: one for one in pdctl.ok("connectors", "--vllm", "0.24.0", "--json").json["connectors"]}
    assert (rows["p2p_nccl"]["in_this_release"], after["p2p_nccl"]["in_this_release"]) == (True, False)
    assert rows["nixl"]["in_this_release"] is True
    assert rows["offloading"]["disaggregates"] is False
    shown = pdctl.ok("connectors").out
    assert all(name in shown for name in rows)
    one = pdctl.ok("connectors", "MooncakeConnector", "--vllm", "0.32.0")
    assert "mooncake" in one.out
    assert pdctl("connectors", "nixel").code == 2
    assert "did you mean `nixl`?" in pdctl("connectors", "nixel").err
    newer = pdctl.ok("connectors", "--vllm", "0.99.0", "--json").json
    assert "newer than any release known" in newer["warnings"][0]
