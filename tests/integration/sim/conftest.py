"""A starter of simulated engines that leaves none running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually, free_block
from tests.integration.sim.engines import Sim, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Sim] = []

    def run(
        *flags: str, config: dict[str, Any] | None = None, env: dict[str, str] | None = None, wait: bool = True
    ) -> Sim:
        port = free_block()
        log = tmp_path / f"sim-{len(running)}.log"
        argv = [
            sys.executable,
            "-m",
            "pdctl.sim",
            "--model",
            "sim/tiny",
            "--port",
            str(port),
            "--sim-startup",
            "0",
            *flags,
        ]
        if config is not None:
            argv += ["--kv-transfer-config", json.dumps(config)]
        with log.open("wb") as out:
            process = subprocess.Popen(argv, env={**os.environ, **(env or {})}, stdout=out, stderr=subprocess.STDOUT)
        one = Sim(process, f"http://127.0.0.1:{port}", log)
        running.append(one)
        if wait:
            eventually(one.healthy, 20, "the engine is healthy")
        return one

    yield run
    for one in running:
        one.process.kill()
        one.process.wait()
