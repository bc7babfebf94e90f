from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pdctl.proxy.answers import Cleaner, cached_tokens
from pdctl.proxy.body import Unit
from pdctl.proxy.merge import EventMerger, merge_answers, sum_usage
from pdctl.proxy.metrics import LEASE_S, Metrics

INTERNAL = b"___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2_abc"
EVENTS = b"".join(
    b'data: {"id":"cmpl-%b","choices":[{"text":"%d \\u00e9 kv_transfer_params"}]}\n\n' % (INTERNAL, n) for n in range(4)
)
LAST = b'data: {"id":"x","usage":{"prompt_tokens_details":{"cached_tokens":9}},"kv_transfer_params":{"h":1}}\n\n'


@given(st.lists(st.integers(0, len(EVENTS + LAST)), max_size=12))
def test_events_come_out_clean_wherever_they_were_cut(cuts: list[int]) -> None:
    data = EVENTS + LAST + b"data: [DONE]\n\n"
    cleaner = Cleaner(INTERNAL, b"pub", 2)
    edges = [0, *sorted(cuts), len(data)]
    got = b"".join(cleaner.events(data[a:b]) for a, b in pairwise(edges)) + cleaner.rest()
    assert b"addr" not in got
    assert got.startswith(EVENTS.replace(INTERNAL, b"pub"))
    last = json.loads(got.split(b"\n\n")[4][6:])
    assert last == {"id": "x", "usage": {"prompt_tokens_details": {"cached_tokens": 2}}}
    assert got.endswith(b"data: [DONE]\n\n")


def test_other_line_ends_are_not_held_back() -> None:
    cleaner = Cleaner(b"a", b"a")
    assert cleaner.events(b"data: 1\r\n\r\ndata: 2") == b"data: 1\r\n\r\n"
    assert cleaner.events(b"\r\n\r\n") == b"data: 2\r\n\r\n"


def test_whole_answers_keep_their_bytes_if_clean() -> None:
    raw = b'{ "x": 1.50, "text": "about kv_transfer_params" }'
    assert Cleaner(b"a", b"a", 3).whole(raw) == raw
    assert json.loads(Cleaner(b"a", b"a").whole(b'{"kv_transfer_params":null,"x":1}')) == {"x": 1}


def test_cached_tokens_of_any_shape() -> None:
    assert cached_tokens({"usage": {"prompt_tokens_details": {"cached_tokens": 4}}}) == 4
    assert [cached_tokens(answer) for answer in ({}, {"usage": None}, {"usage": {"prompt_tokens_details": None}})] == [
        None
    ] * 3


def test_usage_counts_a_prompt_once() -> None:
    units = [Unit(n, n % 2 == 0, {}) for n in range(4)]
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    assert sum_usage([(usage, unit) for unit in units]) == {
        "prompt_tokens": 20,
        "completion_tokens": 12,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert sum_usage([(None, units[0])]) is None


def test_answers_merge_in_order() -> None:
    units = [Unit(1, True, {}), Unit(0, True, {})]
    merged = merge_answers([{"choices": [{"index": 0, "text": "b"}]}, {"choices": [{"index": 0, "text": "a"}]}], units)
    assert merged["choices"] == [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]


def test_streams_merge_to_one() -> None:
    merger = EventMerger("cmpl-x", include_usage=True)
    units = [Unit(0, True, {}), Unit(1, False, {})]
    out = b""
    for unit in units:
        out += merger.take(
            unit, b'data: {"id":"i%d","created":%d,"choices":[{"index":0}]}\n\n' % (unit.index, unit.index)
        )
        out += merger.take(unit, b'data: {"id":"i","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n')
        out += merger.take(unit, b"data: [DONE]\n\n")
    out += merger.end()
    payloads = [block[6:] for block in out.decode().split("\n\n")[:-1]]
    assert payloads[-1] == "[DONE]"
    assert [json.loads(one) for one in payloads[:-1]] == [
        {"id": "cmpl-x", "created": 0, "choices": [{"index": 0}]},
        {"id": "cmpl-x", "created": 0, "choices": [{"index": 1}]},
        {"id": "cmpl-x", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
    ]


def test_abandoned_hand_overs_are_held_for_a_bounded_time() -> None:
    metrics = Metrics()
    metrics.abandon(100.0)
    assert "pdctl_proxy_handovers_abandoned_held 1" in metrics.render(101.0, [])
    later = metrics.render(100.0 + LEASE_S, [])
    assert "pdctl_proxy_handovers_abandoned_held 0" in later
    assert "pdctl_proxy_handovers_abandoned_total 1" in later


def test_metrics_are_cumulative_and_escaped() -> None:
    metrics = Metrics()
    metrics.prefill.observe(0.2)
    metrics.requests.add('a"b', "200")
    page = metrics.render(0.0, [])
    assert 'pdctl_proxy_prefill_seconds_bucket{le="0.1"} 0' in page
    assert 'pdctl_proxy_prefill_seconds_bucket{le="0.25"} 1' in page
    assert 'pdctl_proxy_prefill_seconds_bucket{le="+Inf"} 1' in page
    assert 'pdctl_proxy_requests_total{route="a\\"b",status="200"} 1' in page
