"""`--set`: as if it stood in the file, and problems point at the command line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pdctl.errors import TopologyError
from tests.unit.topology.loading import GOOD, load, only, place

FULL: dict[str, Any] = {
    "model": "/m", "layout": "1P1D", "connector": {"name": "nixl", "extra": {"a": 1}}, "tp": 1,
    "engine": {"kind": "vllm", "args": {"x": 1}, "env": {"A": "b"}}, "prefill": {"tp": 1}, "proxy": {"port": 8000},
    "hosts": [{"name": "a", "address": "10.0.0.1", "gpus": 8}, {"name": "b", "address": "10.0.0.2", "gpus": [0, 1]}],
    "health": {"interval": "5s"}, "restart": {"policy": "never"},
}  # fmt: skip
PATHS: list[tuple[str | int, ...]] = [
    ("tp",), ("dp",), ("gpus",), ("name",), ("model",), ("served_model_name",), ("zzz",), ("prefill", "zzz"),
    ("engine", "kind"), ("engine", "version"), ("engine", "args", "x"), ("engine", "args", "new-flag"),
    ("engine", "env", "A"), ("prefill", "tp"), ("decode", "tp"), ("decode", "hosts"), ("connector", "extra", "a"),
    ("connector", "extra", "b", "c"), ("proxy", "port"), ("proxy", "bind"), ("hosts", 0, "gpus"),
    ("hosts", 1, "gpus", 1), ("hosts", 1, "address"), ("hosts", 0, "ssh", "port"), ("health", "interval"),
    ("restart", "policy"),
    ("ports", "base"), ("logs", "max_size"),
]  # fmt: skip
VALUES = [
    "2", "0", "-1", "two", "true", "0.30", "[0, 1]", "{a: 1}", "null", "20m", "100MiB", "'quoted'", "10.0.0.9",
    "a", "vllm",
]  # fmt: skip


def _dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _outcome(text: str, *settings: str) -> Any:
    try:
        return load(text, *settings).topology
    except TopologyError as error:
        return sorted((one.path, one.what, one.fix) for one in error.problems)


def _flow(value: Any, at: tuple[str | int, ...], path: tuple[str | int, ...], written: str) -> str:
    """Write data as YAML in flow style, with the value at a path as given."""
    if at == path:
        return written
    below = path[len(at)] if path[: len(at)] == at else None
    if isinstance(value, list):
        return "[" + ", ".join(_flow(one, (*at, index), path, written) for index, one in enumerate(value)) + "]"
    if isinstance(value, dict) or (value is None and isinstance(below, str)):
        keys = list(value or {})
        keys += [below] if isinstance(below, str) and below not in keys else []
        return (
            "{" + ", ".join(f"{key}: {_flow((value or {}).get(key), (*at, key), path, written)}" for key in keys) + "}"
        )
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n").removesuffix("\n...").strip()


@given(st.sampled_from(PATHS), st.sampled_from(VALUES))
def test_a_setting_equals_writing_it_in_the_file(path: tuple[str | int, ...], value: str) -> None:
    set_on_top = _outcome(yaml.safe_dump(FULL, sort_keys=False), f"{_dotted(path)}={value}")
    assert set_on_top == _outcome(_flow(FULL, (), path, value))


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("tp=4", "tp", 4),
        ("engine.version=0.30", "engine.version", "0.30"),
        ("engine.args.max-num-seqs=8", "engine.args", {"max-num-seqs": 8}),
        ('engine.args."a.b"=8', "engine.args", {"a.b": 8}),
        ("engine.args={x: [1, 2]}", "engine.args", {"x": [1, 2]}),
        ("prefill.hosts=[local]", "prefill.hosts", ["local"]),
        ("connector.extra.backends=[UCX]", "connector.extra", {"backends": ["UCX"]}),
        ("served_model_name=a=b", "served_model_name", "a=b"),
        (" health.interval = 9s", "health.interval", None),
        ("health.interval=9s", "health.interval", 9.0),
    ],
)
def test_settings_reach_every_level(setting: str, path: str, value: object) -> None:
    if value is None:
        assert only(GOOD, setting).file == "--set"
        return
    found: Any = load(GOOD, setting).topology
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_items_of_lists_are_set_by_index_and_appended() -> None:
    text = GOOD + "hosts:\n  - {name: a, address: 10.0.0.1, gpus: 8}\n"
    hosts = load(text, "hosts[0].gpus=[0, 1]", "hosts[1]={name: b, address: 10.0.0.2}").topology.hosts
    assert [(host.name, host.gpus) for host in hosts] == [("a", [0, 1]), ("b", None)]
    assert load(GOOD, "hosts[0].name=x").topology.hosts[0].name == "x"


def test_the_later_setting_wins_over_the_earlier_and_both_over_the_file() -> None:
    assert load(GOOD + "tp: 2\n", "tp=4", "tp=8").topology.tp == 8


@pytest.mark.parametrize(
    ("text", "settings", "counts"),
    [
        ("", ("layout=2P3D",), (2, 3)),
        ("prefill: {replicas: 1}\n", ("layout=2P3D",), (2, 3)),
        ("", ("decode.replicas=4",), (1, 4)),
        ("", ("layout=2P3D", "decode.replicas=4"), (2, 4)),
        ("", ("decode.replicas=4", "layout=2P3D"), (2, 3)),
        ("", ("prefill={replicas: 5}",), (5, 1)),
        ("", ("layout=null", "prefill.replicas=2", "decode.replicas=2"), (2, 2)),
    ],
)
def test_between_layout_and_replicas_the_last_setting_wins(
    text: str, settings: tuple[str, ...], counts: tuple[int, int]
) -> None:
    topology = load(GOOD + text, *settings).topology
    assert (topology.prefill.replicas, topology.decode.replicas) == counts
    assert topology.layout in (None, f"{counts[0]}P{counts[1]}D")


@pytest.mark.parametrize(
    ("setting", "path", "what"),
    [
        ("tp=two", "tp", "'two' is not a whole number"),
        ("zzz=1", "zzz", "unknown key"),
        ("zzz.y=1", "zzz", "unknown key"),
        ("prefill.tensor_parallel=1", "prefill.tensor_parallel", "unknown key"),
        ("tp.x=1", "tp.x", "is no mapping"),
        ("hosts[3].name=a", "hosts[3].name", "no item 3"),
        ("model[0]=a", "model[0]", "no item 0"),
        ("tp", "", "`tp` is no setting"),
        ("=2", "", "is no setting"),
        ("a b=2", "", "is no setting"),
        ("a..b=2", "", "is no setting"),
        ("a[x]=2", "", "is no setting"),
        ("tp=[1", "tp", "`[`"),
        ("tp={a: 1, a: 2}", "tp.a", "twice"),
        ("ports.base=40000", "ports.base", "too high"),
        ("engine.env.VLLM_HOST_IP=1", "engine.env.VLLM_HOST_IP", "pdctl sets it"),
        ("hosts=[{name: a, gpus: -1}]", "hosts[0].gpus", "too small"),
    ],
)
def test_a_problem_of_a_setting_points_at_the_command_line(setting: str, path: str, what: str) -> None:
    problem = only(GOOD + "tp: 1\n", setting)
    assert (problem.file, problem.line, problem.column) == ("--set", 0, 0)
    assert problem.path == path
    assert what in problem.what
    assert problem.fix
    assert str(problem).startswith("--set: ")


def test_a_key_beside_a_setting_keeps_its_place_in_the_file() -> None:
    text = GOOD + "prefill:\n  dp: two\nhosts:\n  - {name: a, gpus: -1}\n"
    with pytest.raises(TopologyError) as caught:
        load(text, "prefill.tp=2", "hosts[0].address=10.0.0.1")
    assert [place(one) for one in caught.value.problems] == [("prefill.dp", 5, 3), ("hosts[0].gpus", 7, 15)]


def test_settings_can_make_up_for_an_empty_file() -> None:
    assert load("", "model=/m", "layout=1P1D", "connector=nixl").topology.model == "/m"
    assert only("", "layout=1P1D", "connector=nixl").path == "model"
