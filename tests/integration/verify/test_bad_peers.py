"""Engines and proxies that answer nonsense: verify reports it, whatever it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pdctl.verify import verify_cluster
from tests.integration.verify.clusters import Running, planned, start

Serve = Callable[[int, Any], None]
PAIR = {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [[1]]}}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve the same JSON for every path on a port; /health says 200."""
    servers: list[ThreadingHTTPServer] = []

    def run(port: int, answer: Any) -> None:
        text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<html>",
        "[]",
        {},
        {"choices": "x"},
        {"choices": [1]},
        {"choices": []},
        {"choices": [{"token_ids": ["x"]}]},
        {"choices": [{"logprobs": 1}]},
        {"choices": [{"logprobs": {"tokens": ["token_id:x"]}}]},
        {"data": ["x"]},
        {"data": {"a": 1}},
        {"data": [{"max_model_len": "long"}], "choices": [{"text": None}]},
        {"data": [{"max_model_len": -5}], "choices": [{"text": "abc"}], **PAIR},
        {"choices": [{"text": "abc"}], "kv_transfer_params": "x"},
        {"choices": [{"text": "abc"}], "kv_transfer_params": [1]},
        {"error": "no", "choices": [{"text": "abc"}], **PAIR},
    ],
)
@pytest.mark.parametrize("connector", ["nixl", pytest.param("p2p_nccl", marks=pytest.mark.slow)])
def test_nonsense_is_a_report(serve: Serve, connector: str, answer: Any) -> None:
    plan = planned(connector)
    for one in plan.instances:
        serve(one.ports["http"].first, answer)
    report = verify_cluster(plan, timeout_s=2, seed=1)
    assert report.exit_code == 5
    assert report.pairs[0].verdict in {"error", "inconclusive"}
    assert report.pairs[0].reason
    json.dumps(report.to_dict())


def test_a_proxy_that_answers_something_else_is_found_out(serve: Serve, running: Running) -> None:
    plan = planned("nixl")
    producer, consumer, proxy = plan.instances
    start(running, producer, consumer)
    serve(proxy.ports["http"].first, {"choices": [{"token_ids": [1, 2, 3]}]})
    report = verify_cluster(plan, timeout_s=5, seed=1)
    assert report.pairs[0].verdict == "used", "the pair itself is fine"
    assert report.equality is not None
    assert (report.equality.equal, report.equality.first_wrong) == (0, report.equality.prompts)
    assert report.exit_code == 5
    assert "0 of 4 outputs through the proxy" in report.headline


def test_a_proxy_that_is_not_there_is_found_out(running: Running) -> None:
    plan = planned("nixl")
    start(running, *plan.instances[:2])
    report = verify_cluster(plan, timeout_s=2, seed=1)
    assert (report.exit_code, report.pairs[0].verdict) == (5, "used")
    assert any("the proxy cannot be asked" in warning for warning in report.warnings)


def test_without_a_proxy_only_pairs_are_probed(running: Running) -> None:
    plan = planned("nixl")
    pair = replace(plan, instances=plan.instances[:2])
    start(running, *pair.instances)
    report = verify_cluster(pair, timeout_s=5, seed=1)
    assert (report.ok, report.equality) == (True, None)


def test_a_port_that_accepts_and_says_nothing_costs_the_time_limit_only() -> None:
    import socket
    import time

    plan = planned("nixl")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", plan.instance("producer-0").ports["http"].first))
        silent.listen()
        began = time.monotonic()
        report = verify_cluster(replace(plan, instances=plan.instances[:2]), timeout_s=1, seed=1)
    assert report.pairs[0].verdict == "error"
    assert time.monotonic() - began < 5
