"""How long `pdctl up` takes beyond the engines' own start.

Starts the same processes (simulated engines whose start takes no time, and the proxy) three ways in turns: `pdctl up`
until it returns (ready, without verification), honcho until every /health answers, and bare `subprocess.Popen` until every /health
answers (the floor). Prints medians in seconds and ratios; honcho is the named alternative.

    python bench/startup.py [--rounds 5] [--replicas 2 32]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PDCTL = [sys.executable, "-m", "pdctl"]
POLL_S = 0.01
LIMIT_S = 120.0


def topology(replicas: int) -> str:
    """Return a cluster of `replicas` engines, half prefill and half decode."""
    half = replicas // 2
    return (
        f"name: bench-{replicas}\nmodel: sim/tiny\nlayout: {half}P{half}D\nconnector: nixl\n"
        "engine: {kind: sim, args: {sim-startup: 0}}\nproxy: {port: 18000}\nports: {base: 18100, size: 2000}\n"
    )


def healthy(url: str) -> bool:
    """Say whether an instance answers /health with 200."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def wait_healthy(urls: list[str]) -> None:
    """Wait until all answer; the same poller for every contender but pdctl, which waits by itself."""
    end = time.monotonic() + LIMIT_S
    left = list(urls)
    while left:
        left = [url for url in left if not healthy(url)]
        if time.monotonic() > end:
            raise SystemExit(f"not healthy after {LIMIT_S} s: {left}")
        if left:
            time.sleep(POLL_S)


def instances(file: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """Return the planned instances."""
    done = subprocess.run([*PDCTL, "plan", str(file), "--format", "json"], env=env, check=True, capture_output=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["instances"]
    return found


def with_pdctl(file: Path, name: str, env: dict[str, str]) -> float:
    """Time `pdctl up` until it returns, then take it down."""
    began = time.monotonic()
    subprocess.run([*PDCTL, "up", str(file), "--no-verify", "-y"], env=env, check=True, capture_output=True)
    took = time.monotonic() - began
    subprocess.run([*PDCTL, "down", "-c", name], env=env, check=True, capture_output=True)
    return took


def with_honcho(folder: Path, planned: list[dict[str, Any]], env: dict[str, str]) -> float:
    """Time honcho starting the same argv lists until all are healthy."""
    lines = [
        f"{one['name']}: env {' '.join(shlex.quote(f'{key}={value}') for key, value in one['env'].items())} {shlex.join(one['argv'])}"
        for one in planned
    ]
    (folder / "Procfile").write_text("\n".join(lines) + "\n")
    honcho = [sys.executable, "-m", "honcho", "-f", str(folder / "Procfile"), "start"]
    return _timed(
        lambda: [
            subprocess.Popen(
                honcho, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        ],
        planned,
    )


def bare(planned: list[dict[str, Any]], env: dict[str, str]) -> float:
    """Time plain Popen of the same argv lists until all are healthy."""

    def start() -> list[subprocess.Popen[bytes]]:
        return [
            subprocess.Popen(
                one["argv"],
                env={**env, **one["env"]},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for one in planned
        ]

    return _timed(start, planned)


def _timed(start: Callable[[], list[subprocess.Popen[bytes]]], planned: list[dict[str, Any]]) -> float:
    began = time.monotonic()
    running = start()
    try:
        wait_healthy([one["url"] for one in planned])
        return time.monotonic() - began
    finally:
        for number in (
            signal.SIGTERM,
            signal.SIGKILL,
        ):  # a contender that does not end its children must not stop the measurement
            for process in running:
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue
            for process in running:
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    continue


def main() -> None:
    """Measure in alternating rounds and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 32])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        env = {**os.environ, "PDCTL_HOME": f"{temporary}/home"}
        for replicas in options.replicas:
            file = Path(temporary) / f"bench-{replicas}.yaml"
            file.write_text(topology(replicas))
            planned = instances(file, env)
            times: dict[str, list[float]] = {"pdctl": [], "honcho": [], "bare": []}
            for _ in range(options.rounds):
                times["pdctl"].append(with_pdctl(file, f"bench-{replicas}", env))
                times["honcho"].append(with_honcho(Path(temporary), planned, env))
                times["bare"].append(bare(planned, env))
            median = {name: statistics.median(values) for name, values in times.items()}
            print(
                f"{replicas} engines + proxy, {options.rounds} rounds: "
                + ", ".join(f"{name} {value:.2f} s" for name, value in median.items())
                + f"; pdctl/honcho {median['pdctl'] / median['honcho']:.2f} x, pdctl/bare {median['pdctl'] / median['bare']:.2f} x, "
                f"beyond bare {median['pdctl'] - median['bare']:+.2f} s"
            )


if __name__ == "__main__":
    main()
