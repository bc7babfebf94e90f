"""YAML itself: what cannot be read is a located error in plain words, and nothing is read as something else."""

from __future__ import annotations

import time

import pytest

from tests.unit.topology.loading import GOOD, load, only, place, problems


@pytest.mark.parametrize(
    ("text", "line", "column", "what", "fix"),
    [
        ("model: m\nengine:\n\tkind: sim\n", 3, 1, "tab", "use spaces"),
        ("model: m\nhosts:\n  - name: a\n \t  gpus: 4\n", 4, 2, "tab", "use spaces"),
        ("model:\tm\n", 1, 7, "tab", "use spaces"),
        ("model: m\n---\nmodel: n\n", 2, 1, "second YAML document", "keep one"),
        ("model: m\n  tp: 2\n", 2, 5, "`:`", "align"),
        ("model: m\nlayout\ntp: 2\n", 2, 1, "key without `:`", "key: value"),
        ("prefill:\n    tp: 2\n  dp: 2\n", 3, 3, "indentation", "align"),
        ("hosts: [a, b\ntp: 2\n", 1, 8, "`[`", "close it"),
        ("prefill: {tp: 2\nmodel: m\n", 1, 10, "`{`", "close it"),
        ("model: 'm\n", 1, 8, "quote", "close it"),
        ('model: "\\d"\n', 1, 10, "escape", "single quotes"),
        ("model: @m\n", 1, 8, "character", "quotes"),
        ("model: *m\n", 1, 8, "anchor", "quotes"),
        ("prefill: {tp: ${TP}}\n", 1, 15, "needs quotes", '"${NAME}"'),
        ("hosts: [{address: ::1}]\n", 1, 19, "begins with `:`", "quotes"),
        ("model: m\x07\n", 1, 9, "U+0007", "remove it"),
        ("", 1, 1, "empty", "model"),
        ("# nothing\n", 1, 1, "empty", "model"),
        ("- model: m\n", 1, 1, "no mapping", "key: value"),
        ("just text\n", 1, 1, "no mapping", "key: value"),
        ("%YAML 9.0\n---\nmodel: m\n", 1, 1, "YAML", ""),
    ],
)
def test_what_is_no_yaml_is_located_with_a_fix(text: str, line: int, column: int, what: str, fix: str) -> None:
    problem = only(text)
    assert (problem.file, problem.line, problem.column) == ("t.yaml", line, column)
    assert what in problem.what
    assert fix in problem.fix
    assert problem.fix


def test_a_duplicate_key_names_both_lines() -> None:
    problem = only(GOOD + "tp: 2\nhosts: []\ntp: 4\n")
    assert place(problem) == ("tp", 6, 1)
    assert "line 4" in problem.what
    assert "line 6" in problem.what


def test_duplicates_are_found_at_every_level() -> None:
    found = problems(GOOD + "engine: {kind: sim, kind: vllm}\nhosts:\n  - name: a\n    name: b\n")
    assert [place(one) for one in found] == [("engine.kind", 4, 21), ("hosts[0].name", 7, 5)]


def test_anchors_and_merge_keys_work_and_own_keys_win() -> None:
    file = load(
        GOOD
        + "prefill: &role\n  tp: 2\n  args: &args {max-num-seqs: 8}\ndecode:\n  <<: *role\n  tp: 4\n"
        + "engine:\n  args:\n    <<: [*args, {seed: 1}]\n    dtype: float32\n"
    )
    assert file.topology.prefill.tp == 2
    assert file.topology.decode.tp == 4
    assert file.topology.decode.args == {"max-num-seqs": 8}
    assert file.topology.engine.args == {"max-num-seqs": 8, "seed": 1, "dtype": "float32"}


def test_a_value_below_an_alias_is_located_where_it_is_written() -> None:
    found = problems(GOOD + "prefill: &role\n  tp: two\ndecode: *role\n")
    assert [place(one) for one in found] == [("prefill.tp", 5, 3), ("decode.tp", 5, 3)]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: &a {k: v}\n" + "".join(f"m{n}: {{<<: [{', '.join(['*a'] * 500)}]}}\n" for n in range(90)),
        "a: " + "[" * 100_000,
        "a: " + "{a: " * 20_000,
        "- " * 20_000,
        "? " * 20_000,
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "a: &a {<<: *a}\n",
        "a: [" + "x, " * 30_000 + "]\n",
        "x" * 300_000,
    ],
    ids=[
        "laughs",
        "merges",
        "brackets",
        "braces",
        "dashes",
        "questions",
        "loop",
        "map loop",
        "merge loop",
        "wide",
        "long",
    ],
)
def test_bombs_are_refused_quickly(text: str) -> None:
    begin = time.process_time()
    found = problems(text)
    assert time.process_time() - begin < 10
    assert all(one.line >= 1 for one in found)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.22", "0.22"),
        ("0.30", "0.30"),
        ("1_0", "1_0"),
        ("yes", "yes"),
        ("1P1D", "1P1D"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("'0.5'", "0.5"),
        ("0x1F", "0x1F"),
    ],
)
def test_text_keys_hold_what_is_written(written: str, read: str) -> None:
    topology = load(
        GOOD + f"engine: {{version: {written}, env: {{A: {written}}}}}\nserved_model_name: {written}\n"
    ).topology
    assert topology.engine.version == read
    assert topology.served_model_name == read
    assert topology.engine.env == {"A": read}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("12", 12),
        ("-3", -3),
        ("0x10", 16),
        ("1e9", 1e9),
        ("0.85", 0.85),
        ("on", True),
        ("No", False),
        ("null", None),
        ("010", "010"),
        ("1:0", "1:0"),
        ("2024-01-01", "2024-01-01"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("1" * 5000, "1" * 5000),
        ("!!str 12", "12"),
        ('!!int "12"', 12),
        ("=", "="),
    ],
)
def test_free_arguments_are_read_without_surprises(written: str, read: object) -> None:
    value = load(GOOD + f"engine:\n  args:\n    flag: {written}\n").topology.engine.args["flag"]
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [ls]", "!!binary aGk=", "!mine x", "!!set {a, b}", "!!int x"]
)
def test_tags_mean_nothing(tag: str) -> None:
    problem = only(GOOD + f"engine:\n  args:\n    flag: {tag}\n")
    assert problem.path == "engine.args.flag"
    assert problem.line == 6
    assert "remove the tag" in problem.fix


def test_a_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    assert load("\ufeff" + GOOD.replace("\n", "\r\n")).topology.prefill.replicas == 1


def test_empty_sections_are_defaults() -> None:
    topology = load(GOOD + "engine:\nhosts:\nproxy:\n  # port: 1\nprefill:\n  args:\n").topology
    assert topology.engine.kind == "vllm"
    assert topology.hosts == []
    assert topology.prefill.args == {}
