"""Whole plans: golden files, and what must hold in every plan."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.errors import PlanError
from pdctl.plan.document import plan_document, shell_script
from pdctl.plan.saved import plan_from_json, plan_to_json
from pdctl.vllm.flags import normal_flag, owned_by
from tests.conftest import ROOT
from tests.planning import FACTS, facts, plan_of, problems_of

GOLDEN = ROOT / "tests" / "data" / "plans"
KNOWN = {"cpu-nixl": facts("0.32.0")}
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_planned_as_recorded(file: Path) -> None:
    document = plan_document(plan_of(file.read_text(), KNOWN.get(file.stem, FACTS)))
    golden = GOLDEN / f"{file.stem}.json"
    if os.environ.get("PDCTL_WRITE_GOLDEN"):
        golden.write_text(json.dumps(document, indent=1) + "\n")
    assert document == json.loads(golden.read_text())


def test_the_template_is_planned() -> None:
    text = (ROOT / "templates" / "topology.yaml").read_text()
    assert plan_of(text, facts("0.33.0", 2)).connector == "nixl"


TEXTS = st.builds(
    lambda p, d, a, tp, dp, wider, connector, share: (
        f"model: m\nlayout: {p}P{d}D\ntp: {tp}\ndp: {dp}\ndecode: {{tp: {tp * wider}}}\nallow_idle_gpus: true\nshare_gpus: {share}\naggregated: {{replicas: {a}}}\n"
        f"connector: {connector[0]}\nengine: {{version: {connector[1]}, args: {{max-num-seqs: 8}}}}\n"
        "hosts:\n  - {name: a, address: 10.0.0.1, gpus: 16}\n  - {name: b, address: 10.0.0.2, gpus: 16}\n"
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 2),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from(
        [("nixl", "0.10.2"), ("nixl", "0.22.1"), ("nixl", "0.33.0"), ("p2p_nccl", "0.10.2"), ("p2p_nccl", "0.22.1")]
    ),
    st.sampled_from([1, 2]),
)


@given(TEXTS)
@settings(max_examples=80, deadline=None)
def test_what_holds_in_every_plan(text: str) -> None:
    try:
        plan = plan_of(text)
    except PlanError as error:
        assert all(one.line and one.what for one in error.problems)
        return
    assert plan == plan_of(text), "the same input gives the same plan"
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    share = 2 if "share_gpus: 2" in text else 1
    for host in plan.hosts:
        here = [one for one in plan.instances if one.host == host.name]
        ports = [port for one in here for range_ in one.ports.values() for port in range(range_.first, range_.last + 1)]
        assert len(ports) == len(set(ports)), "no port twice on a host"
        assert all(range_.why for one in here for range_ in one.ports.values()), "each range says why it is that wide"
        assert max(ports, default=0) < 32768
        gpus = Counter(gpu for one in here for gpu in one.gpus)
        assert max(gpus.values(), default=0) <= share, "no GPU more often than shared"
    for one in plan.instances:
        assert [rank.rank for rank in one.ranks] == list(range(len(one.ranks))), "every rank once"
        assert len({(rank.dp, rank.pp, rank.tp) for rank in one.ranks}) == len(one.ranks)
        assert [rank.gpu for rank in one.ranks] == list(one.gpus)
        assert len(set(one.gpus)) == len(one.gpus)
        flags = Counter(normal_flag(word) for word in one.argv if word.startswith("--"))
        if one.role != "proxy":
            assert all(count == 1 for flag, count in flags.items() if owned_by(flag)), "planner-owned flags stand once"
            assert one.argv.count("--max-num-seqs") == 1
        told = " ".join([*one.argv, *one.env.values()])
        assert "0.0.0.0" not in told
        assert "localhost" not in told
        if one.role != "proxy":
            assert one.env["VLLM_HOST_IP"] == plan.host(one.host).address, "each tells its own host's address"


def test_more_replicas_move_nobodys_ports() -> None:
    text = "model: m\nlayout: 1P1D\nconnector: nixl\nengine: {kind: sim}\n"
    small, large = plan_of(text), plan_of(text.replace("1P1D", "2P3D"))
    for one in small.instances:
        if one.role != "proxy":
            assert one == large.instance(one.name)


OWNED = {
    "port": 8100,
    "--port": 8100,
    "tensor_parallel_size": 4,
    "tp": 4,
    "kv-transfer-config": "{}",
    "host": "0.0.0.0",
    "data-parallel-address": "x",
    "-tp": 2,
}


@pytest.mark.parametrize("flag", OWNED)
@pytest.mark.parametrize("section", ["engine", "prefill", "decode"])
def test_a_flag_that_pdctl_sets_is_refused_where_it_stands(flag: str, section: str) -> None:
    """Case 1: every spelling, for all engines or one role."""
    text = f"model: m\nlayout: 1P1D\nconnector: nixl\n{section}:\n  args:\n    {flag!r}: {OWNED[flag]!r}\nhosts: [{{name: local, gpus: 2}}]\n"
    (problem,) = problems_of(text)
    assert problem.path == f"{section}.args.{flag}"
    assert (problem.line, problem.column) == (6, 5)
    assert "remove it" in problem.fix


def test_free_arguments_pass_once_and_the_roles_win() -> None:
    text = (
        "model: m\nlayout: 1P1D\nconnector: nixl\nengine: {version: 0.33.0, args: {max_model_len: 4096, enforce-eager: true, seed: null, enable-prefix-caching: false, "
        "allowed-media-domains: [a, b], override-generation-config: {k: 1}}}\ndecode: {args: {max-model-len: 8192}}\nhosts: [{name: local, gpus: 2}]\n"
    )
    plan = plan_of(text)
    producer, consumer = plan.instance("producer-0").argv, plan.instance("consumer-0").argv
    assert producer[producer.index("--max-model-len") + 1] == "4096"
    assert consumer[consumer.index("--max-model-len") + 1] == "8192"
    assert consumer.count("--max-model-len") == 1
    joined = " ".join(producer)
    assert (
        '--enforce-eager --no-enable-prefix-caching --allowed-media-domains a b --override-generation-config {"k":1}'
        in joined
    )
    assert "--seed" not in joined


def test_interpreters_and_activation() -> None:
    text = (
        "model: ./models/m\nlayout: 1P1D\nconnector: nixl\nengine: {version: 0.33.0, python: ~/v/bin/python}\n"
        "hosts: [{name: local, gpus: 2, activate: source /opt/env, python: rel/python, interface: eth1, env: {A: 1}}]\n"
    )
    one = plan_of(text).instance("producer-0")
    assert one.argv[:6] == ("/bin/bash", "-c", 'source /opt/env && exec "$@"', "pdctl", "/srv/rel/python", "-m")
    assert one.argv[one.argv.index("--model") + 1] == "/srv/models/m"
    assert {key: one.env[key] for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "A")} == {
        "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1", "UCX_NET_DEVICES": "eth1", "A": "1",
    }  # fmt: skip
    assert (
        plan_of(text.replace("activate: source /opt/env, python: rel/python, ", "")).instance("producer-0").argv[0]
        == "/home/u/v/bin/python"
    )


def test_versions_are_asked_assumed_or_refused() -> None:
    text = "model: m\nlayout: 1P1D\nconnector: nixl\nhosts: [{name: local, gpus: 2}]\n"
    assert (plan_of(text, facts("0.22.1")).vllm_version, plan_of(text, facts("0.22.1")).version_assumed) == (
        "0.22.1",
        False,
    )
    assumed = plan_of(text)
    assert assumed.version_assumed
    assert any("no vLLM version is known" in one for one in assumed.warnings)
    assert problems_of(text + "engine: {version: newest}\n")[0].path == "engine.version"


def test_the_shell_script_is_what_up_would_start() -> None:
    plan = plan_of((ROOT / "examples" / "qwen3-32b-p2p.yaml").read_text())
    script = shell_script(plan)
    assert script.count(" -m vllm.entrypoints.openai.api_server ") == 2
    assert "CUDA_VISIBLE_DEVICES=2,3" in script
    assert script.startswith("#!/bin/sh\n")


def test_what_is_called_a_secret_is_never_shown() -> None:
    text = (
        "model: m\nlayout: 1P1D\nconnector: nixl\nhosts: [{name: local, gpus: 2}]\n"
        "engine: {version: 0.33.0, env: {MY_TOKEN: s3cret, AWS_SECRET_ACCESS_KEY: s3cret, TOKENIZERS_PARALLELISM: 'false'}}\n"
    )
    plan = plan_of(text)
    assert plan.instance("producer-0").env["MY_TOKEN"] == "s3cret", "the engine gets it"
    document, script = json.dumps(plan_document(plan)), shell_script(plan)
    assert "s3cret" not in document + script
    assert 'MY_TOKEN="${MY_TOKEN:?}"' in script
    assert '"TOKENIZERS_PARALLELISM": "false"' in document
