"""Values of the wrong type or size: plain words, the place, and what to write instead."""

from __future__ import annotations

import json

import pytest

from tests.unit.topology.loading import GOOD, load, only, place, problems

_JARGON = ("pydantic", "validation", "input should", "valid ", "type=", "constrained", "literal", "dict", "None")


@pytest.mark.parametrize(
    ("text", "where", "what", "fix"),
    [
        ("tp: two\n", ("tp", 4, 1), "'two' is not a whole number", "write tp: 2"),
        ("tp: true\n", ("tp", 4, 1), "true is not a whole number", "such as tp: 2"),
        ("tp: '2'\n", ("tp", 4, 1), "'2' is not a whole number", "without quotes"),
        ("tp: 2.0\n", ("tp", 4, 1), "2.0 is not a whole number", "write tp: 2"),
        ("tp: 0\n", ("tp", 4, 1), "0 is too small", "use 1 or more"),
        ("tp: 99999999\n", ("tp", 4, 1), "too big", "or less"),
        ("tp:\n", ("tp", 4, 1), "there is no value", "remove the key"),
        ("tp: [2]\n", ("tp", 4, 1), "a list is not a whole number", "such as tp: 2"),
        ("gpus: 3.5\n", ("gpus", 4, 1), "3.5 is not a whole number", "without a fraction"),
        ("gpus: -1\n", ("gpus", 4, 1), "-1 is too small", "use 0 or more"),
        ("prefill: {replicas: -1}\n", ("prefill.replicas", 4, 11), "-1 is too small", "use 0 or more"),
        ("prefill: 2\n", ("prefill", 4, 1), "2 is not a mapping", "replicas, tp"),
        ("allow_idle_gpus: 1\n", ("allow_idle_gpus", 4, 1), "1 is not true or false", "write true or false"),
        ("allow_idle_gpus: maybe\n", ("allow_idle_gpus", 4, 1), "'maybe' is not true or false", "write true or false"),
        ("name: Qwen 3\n", ("name", 4, 1), "'Qwen 3' is not allowed as a name", "lower-case"),
        (f"name: {'a' * 41}\n", ("name", 4, 1), "not allowed as a name", "at most 40"),
        ("served_model_name: ''\n", ("served_model_name", 4, 1), "is empty", "write a value"),
        ("engine: {kind: vlm}\n", ("engine.kind", 4, 10), "'vlm' is not possible", "did you mean `vllm`?"),
        ("engine: {kind: trtllm-serve}\n", ("engine.kind", 4, 10), "not possible", "vllm"),
        ("restart: {policy: no}\n", ("restart.policy", 4, 11), "'no' is not possible", "did you mean `never`?"),
        ("proxy: {port: 70000}\n", ("proxy.port", 4, 9), "70000 is too big", "use 65535 or less"),
        ("proxy: {port: 0}\n", ("proxy.port", 4, 9), "0 is too small", "use 1 or more"),
        ("health: {interval: 5min}\n", ("health.interval", 4, 10), "'5min' is no duration", "write 5m"),
        ("health: {interval: 1d}\n", ("health.interval", 4, 10), "is no duration", "write 24h"),
        ("health: {interval: soon}\n", ("health.interval", 4, 10), "is no duration", "such as 20m"),
        ("health: {interval: 0s}\n", ("health.interval", 4, 10), "too small", "more than 0"),
        ("health: {interval: 99999999h}\n", ("health.interval", 4, 10), "too big", "use 8784h or less"),
        ("logs: {max_size: 100MB}\n", ("logs.max_size", 4, 8), "'100MB' is no size", "write 100MiB"),
        ("logs: {max_size: -1}\n", ("logs.max_size", 4, 8), "-1 is too small", "more than 0"),
        (f"logs: {{max_size: {'9' * 400}GiB}}\n", ("logs.max_size", 4, 8), "too big", "use 1048576GiB or less"),
        ("hosts: {a: {address: b}}\n", ("hosts", 4, 1), "a mapping is not a list", "one `- {name: a"),
        ("hosts: [a]\n", ("hosts[0]", 4, 9), "'a' is not a mapping", "{name: a, address: 10.0.0.1}"),
        ("hosts:\n  - {address: b}\n", ("hosts[0].name", 5, 5), "missing", "name: a"),
        ("hosts:\n  - {name: a, gpus: -1}\n", ("hosts[0].gpus", 5, 15), "-1 is too small", "use 0 or more"),
        ("hosts:\n  - {name: a, gpus: 1.5}\n", ("hosts[0].gpus", 5, 15), "1.5 is not", "a count (gpus: 4)"),
        ("hosts:\n  - {name: a, gpus: all}\n", ("hosts[0].gpus", 5, 15), "'all' is not", "a count (gpus: 4)"),
        ("hosts:\n  - {name: a, gpus: [0, true]}\n", ("hosts[0].gpus[1]", 5, 25), "true is not", "ids or UUIDs"),
        ("hosts:\n  - {name: a b}\n", ("hosts[0].name", 5, 6), "not allowed as a name", "letters"),
        ("prefill: {hosts: a}\n", ("prefill.hosts", 4, 11), "'a' is not a list", "[a, b]"),
        ("placement:\n  - {instance: p0}\n", ("placement[0].host", 5, 5), "missing", "host: a"),
        ("engine: {args: [--port, 1]}\n", ("engine.args", 4, 10), "a list is not a mapping", "{max-model-len: 32768}"),
        ("engine: {env: {A: }}\n", ("engine.env.A", 4, 16), "there is no value", "write text"),
        ("engine: {env: {A: [1]}}\n", ("engine.env.A", 4, 16), "a list is not text", "write one text"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_said_in_plain_words(text: str, where: tuple[str, int, int], what: str, fix: str) -> None:
    problem = only(GOOD + text)
    assert place(problem) == where
    assert what in problem.what
    assert fix in problem.fix
    assert not [word for word in _JARGON if word in f"{problem.what} {problem.fix}"]


def test_a_missing_model_is_located_and_says_what_to_add() -> None:
    problem = only(GOOD.replace("model: /data/models/m\n", ""))
    assert place(problem) == ("model", 1, 1)
    assert problem.what == "missing"
    assert "add `model: /path/to/model`" in problem.fix


def test_a_model_without_a_value_cannot_be_left_out() -> None:
    problem = only(GOOD.replace(" /data/models/m", ""))
    assert place(problem) == ("model", 1, 1)
    assert "add `model: /path/to/model`" in problem.fix


@pytest.mark.parametrize(
    ("layout", "fix"),
    [
        ("1P-1D", "write `1P1D`"),
        ("1p2d", "write `1P2D`"),
        ("2D1P", "write `1P2D`"),
        ("'1P 3D'", "write `1P3D`"),
        ("1", "1P1D"),
        ("PD", "1P1D"),
        ("1P", "1P1D"),
        ("1P1D1D", "1P1D"),
        ("99999P1D", "4096 or less"),
        ("99999999999999999999P1D", "1P1D"),
    ],
)
def test_a_bad_layout_is_one_problem_with_the_right_form(layout: str, fix: str) -> None:
    problem = only(GOOD.replace("1P1D", layout))
    assert place(problem) == ("layout", 2, 1)
    assert fix in problem.fix


def test_wrong_values_rules_and_unknown_keys_come_in_one_go_by_line() -> None:
    found = problems(
        "model: /m\nlayout: 1P1D\ntp: two\nzzz: 1\nports: {base: 32000}\nengine: {env: {VLLM_HOST_IP: x}}\n"
        "hosts:\n  - {name: a, address: localhost}\n  - {name: a, address: 10.0.0.2}\n"
    )
    assert [(one.path, one.line) for one in found] == [
        ("connector", 1),
        ("tp", 3),
        ("zzz", 4),
        ("ports.base", 5),
        ("engine.env.VLLM_HOST_IP", 6),
        ("hosts[0].address", 8),
        ("hosts[1].name", 9),
    ]
    assert all(one.fix for one in found)


def test_the_full_file_of_the_contract_loads() -> None:
    topology = load(
        """
name: qwen3
model: /data/models/Qwen3-32B
served_model_name: Qwen3-32B
layout: 2P2D
tp: 2
dp: 1
pp: 1
gpus: 8
allow_idle_gpus: false
share_gpus: 1
engine:
  kind: vllm
  python: /opt/vllm/bin/python
  activate: source /opt/conda/etc/profile.d/conda.sh && conda activate vllm
  version: 0.22.1
  args: {max-model-len: 32768, dtype: bfloat16}
  env: {NCCL_DEBUG: WARN}
prefill: {replicas: 2, tp: 2, args: {max-num-batched-tokens: 8192, max-num-seqs: 32}, env: {}, hosts: [a]}
decode:  {replicas: 2, tp: 2, args: {max-num-seqs: 256}}
aggregated: {replicas: 0}
connector: {name: nixl, extra: {backends: [UCX]}}
hosts:
  - name: a
    address: 10.0.0.1
    gpus: 8
    ssh: {host: a.example, user: ubuntu, port: 22, identity_file: ~/.ssh/id_ed25519, jump: bastion.example}
    interface: eth0
    workdir: ~/.pdctl
placement:
  - {instance: producer-0, host: a, gpus: [0, 1]}
proxy: {kind: auto, host: a, bind: 127.0.0.1, port: 8000, args: {}, api_key_env: PDCTL_API_KEY}
ports: {base: 20000, size: 2000}
health: {startup_timeout: 20m, interval: 5s, deep: true}
restart: {policy: on-failure, max: 3, window: 10m, backoff: 5s}
logs: {max_size: 100MiB, keep: 5}
"""
    ).topology
    assert (topology.name, topology.engine.version, topology.health.startup_timeout) == ("qwen3", "0.22.1", 1200.0)
    assert topology.logs.max_size == 100 * 2**20
    assert topology.connector is not None
    assert topology.connector.extra == {"backends": ["UCX"]}
    assert topology.placement[0].gpus == [0, 1]
    # A valid topology written out and loaded again is the same.
    written = topology.model_dump(mode="json", exclude_none=True)
    assert load(json.dumps(written)).topology == topology


@pytest.mark.parametrize(
    ("written", "name"), [("nixl", "nixl"), ("NixlConnector", "NixlConnector"), ("{name: p2p_nccl}", "p2p_nccl")]
)
def test_a_connector_is_a_name_or_a_mapping(written: str, name: str) -> None:
    topology = load(GOOD.replace("nixl", written)).topology
    assert topology.connector is not None
    assert topology.connector.name == name
    assert topology.connector.extra == {}


@pytest.mark.parametrize(
    ("written", "path", "fix"),
    [
        ("5", "connector", "connector: nixl"),
        ("''", "connector.name", "write a value"),
        ("{extra: {}}", "connector.name", "name: nixl"),
    ],
)
def test_a_wrong_connector_says_how_to_write_one(written: str, path: str, fix: str) -> None:
    problem = only(GOOD.replace("nixl", written))
    assert (problem.path, problem.line) == (path, 3)
    assert fix in problem.fix


def test_the_name_defaults_to_that_of_the_file() -> None:
    assert load(GOOD).topology.name == "t"
