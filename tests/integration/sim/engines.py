"""Simulated engines as processes, asked over HTTP."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl.vllm.metrics import parse_metrics
from tests.conftest import free_block

NIXL = {"kv_connector": "NixlConnector"}


@dataclass
class Sim:
    """One running engine."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def post(
        self, body: dict[str, Any], path: str = "/v1/completions", request_id: str = "", timeout_s: float = 20
    ) -> Any:
        headers = {"content-type": "application/json", **({"x-request-id": request_id} if request_id else {})}
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps({"model": "tiny", "temperature": 0, **body}).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def status(self, body: dict[str, Any], **options: Any) -> tuple[int, str]:
        try:
            self.post(body, **options)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        return 200, ""

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            return parse_metrics(answer.read().decode()).total(name, **labels) or 0.0

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


Start = Callable[..., Sim]


def nixl(start: Start, role: str, *flags: str, **more: Any) -> Sim:
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_block())}
    return start(*flags, config={**NIXL, "kv_role": role}, env={**env, **more.pop("env", {})}, **more)


A, B = "aaaa one two three four", "bbbb one two three four"


def p2p(start: Start, role: str, *flags: str, **more: Any) -> tuple[Sim, str]:
    port = free_block()
    extra = {"http_port": "1", **more.pop("extra", {})}
    config = {"kv_connector": "P2pNcclConnector", "kv_role": role, "kv_port": port, "kv_connector_extra_config": extra}
    env = {"VLLM_HOST_IP": "127.0.0.1", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1", **more.pop("env", {})}
    return start("--sim-vllm-version", "0.22.1", *flags, config=config, env=env, **more), f"127.0.0.1:{port}"
