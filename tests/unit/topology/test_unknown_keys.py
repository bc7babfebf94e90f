"""An unknown key never turns the file into defaults: it is an error that names the key that was meant."""

from __future__ import annotations

import pytest

from pdctl.topology.fields import all_keys, example_path
from pdctl.topology.keys import advise
from tests.unit.topology.loading import GOOD, only, place, problems


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("default_container: x\n", ("default_container", 4, 1), "known here: name, model"),
        ("replcas: 2\n", ("replcas", 4, 1), "`prefill.replicas` and `decode.replicas`, or `layout: 1P1D`"),
        ("prefill: {tensor_parallel: 2}\n", ("prefill.tensor_parallel", 4, 11), "did you mean `tp`?"),
        ("prefill:\n  replcas: 2\n", ("prefill.replcas", 5, 3), "did you mean `replicas`?"),
        ("hosts:\n  - name: a\n    adress: 10.0.0.1\n", ("hosts[0].adress", 6, 5), "did you mean `address`?"),
        (
            "hosts:\n  - name: a\n    address: b\n    ssh: {host: b, usr: c}\n",
            ("hosts[0].ssh.usr", 7, 20),
            "did you mean `user`?",
        ),
        ("tensor-parallel-size: 2\n", ("tensor-parallel-size", 4, 1), "did you mean `tp`?"),
        ("data_parallel: 2\n", ("data_parallel", 4, 1), "did you mean `dp`?"),
        ("pipeline_parallel_size: 2\n", ("pipeline_parallel_size", 4, 1), "did you mean `pp`?"),
        ("TP: 2\n", ("TP", 4, 1), "did you mean `tp`?"),
        ("num_prefill: 2\n", ("num_prefill", 4, 1), "`prefill.replicas`"),
        ("decoder: {tp: 2}\n", ("decoder", 4, 1), "did you mean `decode`?"),
        ("prefiller: {tp: 2}\n", ("prefiller", 4, 1), "did you mean `prefill`?"),
        ("kv_connector: nixl\n", ("kv_connector", 4, 1), "`connector` stands here already"),
        ("port: 8000\n", ("port", 4, 1), "write `proxy.port` for the clients' port, `ports.base`"),
        ("bind: 0.0.0.0\n", ("bind", 4, 1), "`proxy.bind`"),
        ("version: 0.22.1\n", ("version", 4, 1), "`engine.version`"),
        ("max-model-len: 4096\n", ("max-model-len", 4, 1), "`engine.args`"),
        ("kv_rank: 0\n", ("kv_rank", 4, 1), "`connector.extra`"),
        ("engine: {container: x}\n", ("engine.container", 4, 10), "known here: kind, device, python"),
        ("proxy: {api_key: sk-secret}\n", ("proxy.api_key", 4, 9), "It names the variable"),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(text: str, where: tuple[str, int, int], fix: str) -> None:
    problem = only(GOOD + text)
    assert place(problem) == where
    assert problem.what == "unknown key"
    assert fix in problem.fix
    assert "sk-secret" not in str(problem)


def test_all_unknown_keys_are_listed_in_one_go_in_the_order_of_the_file() -> None:
    text = (
        "default_container: x\nmodel: /m\nlayout: 1P1D\nconnector: nixl\nreplcas: 2\nprefill: {tensor_parallel: 2}\n"
        "hosts:\n  - {name: a, addres: 10.0.0.1}\nzzz: 1\n"
    )
    assert [place(one) for one in problems(text)] == [
        ("default_container", 1, 1),
        ("replcas", 5, 1),
        ("prefill.tensor_parallel", 6, 11),
        ("hosts[0].addres", 8, 15),
        ("zzz", 9, 1),
    ]


def test_a_misspelt_required_key_is_said_once() -> None:
    problem = only("modl: /m\nlayout: 1P1D\nconnector: nixl\n")
    assert place(problem) == ("modl", 1, 1)
    assert problem.fix == "did you mean `model`?"


def test_a_misspelt_layout_is_not_also_reported_as_nothing_to_run() -> None:
    assert only("model: /m\nlayuot: 1P1D\nconnector: nixl\n").path == "layuot"


def test_free_keys_are_free() -> None:
    text = GOOD + "engine: {args: {replcas: 2, no-such-flag: x}}\nprefill: {env: {anything: x}}\n"
    assert only(text + "zzz: 1\n").path == "zzz"


def test_every_key_with_one_letter_too_many_finds_its_way_back() -> None:
    lost = []
    for path in all_keys():
        key = str(path[-1])
        if len(key) < 4:
            continue
        fix, _ = advise((*path[:-1], f"{key}x"), ())
        if f"`{key}`" not in fix and f"`{key}s`" not in fix:
            lost.append((example_path(path), fix))
    assert lost == []
