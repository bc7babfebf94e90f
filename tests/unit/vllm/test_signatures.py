"""The table of log signatures: every row is hit by what engines print, wrappers never win, docs say the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.vllm.releases import names, spans
from pdctl.vllm.root_causes import find_root_cause, find_symptoms
from pdctl.vllm.signatures import SIGNATURES, STUCK, Signature
from tests.conftest import ROOT

CAUSES = [row for row in SIGNATURES if row.weight == "cause"]
HARMS = [row for row in SIGNATURES if row.weight == "harm"]
WRAPPERS = [
    "(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:1757] EngineCore failed to start.",
    "(Worker_TP0 pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:870] WorkerProc failed to start.",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    "(EngineCore pid=7) Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "(EngineCore pid=7) ERROR 12-01 10:00:00 [core.py:1759] EngineCore encountered a fatal error.",
    "RuntimeError: Frontend process failed during engine core initialization.",
]


def by_name(row: Signature) -> str:
    return row.name


@pytest.mark.parametrize("row", SIGNATURES, ids=by_name)
def test_what_an_engine_prints_is_known_by_its_own_row(row: Signature) -> None:
    printed = f"(EngineCore pid=4711) ERROR 12-01 10:00:00 [core.py:1] {row.example}"
    if row.weight == "harm":
        (found,) = find_symptoms([printed])
        assert (found.name, found.count, found.line) == (row.name, 1, printed)
        assert find_root_cause(["Traceback (most recent call last):", row.example]) is None
    else:
        cause = find_root_cause([printed])
        assert cause is not None
        assert cause.name == row.name
        assert cause.evidence == (printed,)
        assert "\\" not in cause.cause
        assert cause.cause[-1] not in ".: "


def test_rows_have_one_name_a_cause_and_a_fix() -> None:
    assert len({row.name for row in SIGNATURES}) == len(SIGNATURES)
    for row in SIGNATURES:
        assert row.cause, row.name
        assert row.fix, row.name
        assert not row.cause.endswith("."), row.name


def test_what_vllm_says_was_found_in_its_sources() -> None:
    """releases.json is made from the wheels: a text that no release has is a mistake in the table."""
    said = {row.name for row in SIGNATURES if row.said}
    assert set(names("messages")) == said
    assert str(spans("messages", "expandable-segments")[0]) == "0.21.0 on"
    assert str(spans("messages", "p2p-unproxied")[0]) == "0.9.2 to 0.23.0"


@given(
    st.sampled_from(CAUSES),
    st.lists(st.sampled_from(WRAPPERS), max_size=5),
    st.lists(st.sampled_from(WRAPPERS), max_size=5),
)
def test_a_wrapper_never_wins(row: Signature, before: list[str], after: list[str]) -> None:
    found = find_root_cause([*before, "Traceback (most recent call last):", row.example, *after])
    assert found is not None
    assert found.name == row.name
    assert not set(found.evidence) & set(WRAPPERS)


@given(st.lists(st.sampled_from(CAUSES), min_size=1, max_size=4), st.lists(st.sampled_from(HARMS), max_size=3))
def test_the_earliest_cause_wins_and_harm_never_does(rows: list[Signature], harms: list[Signature]) -> None:
    found = find_root_cause([*(row.example for row in harms), *(row.example for row in rows)])
    assert found is not None
    assert found.name == rows[0].name


@given(st.lists(st.sampled_from(WRAPPERS), max_size=8))
def test_wrappers_alone_are_no_cause(lines: list[str]) -> None:
    assert find_root_cause(["Traceback (most recent call last):", *lines]) is None


def test_an_unknown_exception_says_more_than_a_dead_worker() -> None:
    lines = [
        "(Worker_TP1 pid=9) Traceback (most recent call last):",
        '(Worker_TP1 pid=9)   File "vllm/x.py", line 3, in load',
        "(Worker_TP1 pid=9) KeyError: 'rope'",
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
    ]
    found = find_root_cause(lines)
    assert found is not None
    assert found.cause == "KeyError: 'rope'"
    last = find_root_cause(lines[-1:])
    assert last is not None
    assert last.cause == "VllmWorker-1 died"


def test_a_side_channel_that_is_taken_names_the_port_not_the_thread() -> None:
    found = find_root_cause([
        "Exception in thread nixl_handshake_listener:",
        "Traceback (most recent call last):",
        '  File "zmq/sugar/socket.py", line 320, in bind',
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5600')",
    ])  # fmt: skip
    assert found is not None
    assert found.cause == "the KV port 10.0.0.1:5600 is taken by another process"
    assert [reason for _, reason in STUCK] == [
        "the NIXL side channel could not be opened, and the engine waits for it for ever"
    ]


def test_symptoms_are_counted() -> None:
    line = "WARNING 12-01 10:00:00 [p2p_nccl_connector.py:224] 🚧kv_cache is None, cmpl-{}"
    found = find_symptoms([line.format(number) for number in range(7)])
    assert [(one.name, one.count) for one in found] == [("p2p-no-kv", 7)]
    assert found[0].cause.startswith("P2pNccl lost the KV of cmpl-0")


def test_the_docs_list_every_row() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for row in SIGNATURES:
        releases = " and ".join(str(span) for span in spans("messages", row.name)) if row.said else "any"
        cause = row.cause.replace("\\1\\2", "…").replace("\\1", "…").replace("\\2", "…")
        assert f"| `{row.name}` | {releases} | {cause} | {row.fix} |" in text, row.name
