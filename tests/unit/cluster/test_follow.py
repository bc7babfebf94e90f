"""Taking up a log where a connection broke: no line lost, none twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdctl.cluster.follow import _Seen, _without

STAMPS = st.integers(0, 6).map(lambda second: f"2026-01-31T12:00:0{second}.000000Z")


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), STAMPS), max_size=30), st.data())
def test_no_line_is_lost_and_none_comes_twice(written: list[tuple[str, str]], data: st.DataObject) -> None:
    log = sorted(((name, stamp, str(number)) for number, (name, stamp) in enumerate(written)), key=lambda row: row[1])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=4)))
    seen, got = _Seen(), []
    since: float | None = None
    for cut in [*cuts, len(log)]:
        sent = log[:cut] if since is None else [row for row in log[:cut] if _epoch(row[1]) >= since]
        got += [row for row in sent if seen.is_new(row)]
        since = seen.resume_since()
    assert got == log


def _epoch(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def test_options_that_a_resumed_stream_must_not_have() -> None:
    assert _without(["--follow", "--tail", "5", "--grep", "x"], "--tail", "--since") == ["--follow", "--grep", "x"]
