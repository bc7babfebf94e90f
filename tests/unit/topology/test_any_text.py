"""Whatever the file holds, loading returns or raises TopologyError, soon, and says the same each time."""

from __future__ import annotations

import string
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdctl.errors import TopologyError
from pdctl.topology.fields import all_keys
from tests.unit.topology.loading import GOOD, load

KEYS = sorted({str(path[-1]) for path in all_keys()} | {"zzz", "tensor_parallel", "<<", "0"})
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(), st.text(string.printable, max_size=8),
    st.sampled_from(["1P1D", "nixl", "${A}", "${A:-2}", "${", "20m", "100MiB", "10.0.0.1", "localhost", "p0", "a"]),
)  # fmt: skip
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


def outcome(text: str, *settings_: str) -> Any:
    try:
        return load(text, *settings_, environ={"A": "x"}).topology
    except TopologyError as error:
        said = error.problems
    assert said
    for problem in said:
        assert problem.what
        assert problem.file in ("t.yaml", "--set")
        assert (problem.line >= 1 and problem.column >= 1) == (problem.file == "t.yaml")
    return said


def ordered(result: Any) -> bool:
    return not isinstance(result, tuple) or list(result) == sorted(result, key=lambda one: (one.line, one.column))


@settings(max_examples=400, deadline=1000)
@given(st.text(string.printable))
@example("a: !!timestamp 2020-99-99")
@example("a: !!float x")
@example("'\\U00110000'")
@example('"\\U00110000"')
@example("%TAG ! tag:x\n---\n!a b")
@example("? a\n? b")
@example("a: &b\nb: *b")
@example("? {a: b}\n: c")
@example("\x00")
@example("a: |9\n b")
def test_any_printable_text(text: str) -> None:
    result = outcome(text)
    assert ordered(result)
    assert outcome(text) == result


@settings(max_examples=200, deadline=1000)
@given(st.text())
def test_any_text_at_all(text: str) -> None:
    outcome(text)
    outcome(GOOD + text)


@settings(max_examples=200, deadline=1000)
@given(st.text(string.printable, max_size=30))
def test_any_setting(setting: str) -> None:
    outcome(GOOD, setting)
    outcome(GOOD, f"tp={setting}")
    outcome(GOOD, f"engine.args.x={setting}")


@settings(max_examples=400, deadline=1000)
@given(st.dictionaries(st.sampled_from(KEYS), DATA, max_size=8))
def test_any_data_under_known_keys(data: dict[str, Any]) -> None:
    text = yaml.safe_dump(data, allow_unicode=True)
    result = outcome(text)
    assert ordered(result)
    assert outcome(text) == result


COUNT = st.integers(1, 4)


@given(COUNT, COUNT, COUNT, COUNT, st.booleans(), st.sampled_from(["nixl", {"name": "p2p_nccl", "extra": {"x": 1}}]))
def test_a_valid_topology_survives_being_written_out(
    p: int, d: int, tp: int, hosts: int, pin: bool, connector: Any
) -> None:
    data: dict[str, Any] = {
        "name": "a-1", "model": "/m", "layout": f"{p}P{d}D", "tp": tp, "connector": connector,
        "hosts": [{"name": f"h{n}", "address": f"10.0.0.{n + 1}", "gpus": 8} for n in range(hosts)],
        "placement": [{"instance": f"p{p - 1}", "host": "h0"}] if pin else [],
    }  # fmt: skip
    topology = load(yaml.safe_dump(data)).topology
    assert (topology.prefill.replicas, topology.decode.replicas, topology.tp) == (p, d, tp)
    assert load(yaml.safe_dump(topology.model_dump(mode="json"))).topology == topology
    assert load(yaml.safe_dump(topology.model_dump(mode="json", exclude_none=True))).topology == topology
