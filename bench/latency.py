"""Wall time of pdctl's commands as ratios to `python -c pass` in the same environment.

    python bench/latency.py [--runs 15]

Brings up the simulated quickstart for `status`; minimum of the runs, in alternating rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUICKSTART = str(ROOT / "examples" / "sim-quickstart.yaml")
PDCTL = str(Path(sys.executable).parent / "pdctl")
COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], 1.0),
    "pdctl --help": ([PDCTL, "--help"], 3.0),
    "pdctl --version": ([PDCTL, "--version"], 3.0),
    "pdctl status --help": ([PDCTL, "status", "--help"], 9.0),
    "pdctl ls --json": ([PDCTL, "ls", "--json"], 9.0),
    "pdctl status --json": ([PDCTL, "status", "--json"], 9.0),
    "pdctl status": ([PDCTL, "status"], 12.0),
    "pdctl logs -n 5": ([PDCTL, "logs", "-n", "5"], 9.0),
    "pdctl plan": ([PDCTL, "plan", QUICKSTART], 19.0),
}


def once(argv: list[str], env: dict[str, str]) -> float:
    """Return the wall time of one run in seconds."""
    began = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as temporary:
        env = {**os.environ, "PDCTL_HOME": temporary}
        subprocess.run([PDCTL, "up", QUICKSTART, "-y", "--no-verify"], env=env, check=True, capture_output=True)
        try:
            best = dict.fromkeys(COMMANDS, float("inf"))
            for _ in range(runs):
                for name, (argv, _) in COMMANDS.items():
                    best[name] = min(best[name], once(argv, env))
        finally:
            subprocess.run([PDCTL, "down", "--purge"], env=env, check=True, capture_output=True)
    base = best["python -c pass"]
    print(f"{'command':<22} {'ms':>7} {'ratio':>7} {'budget':>7}")
    for name, (_, budget) in COMMANDS.items():
        print(f"{name:<22} {best[name] * 1000:7.1f} {best[name] / base:6.1f}x {budget:6.0f}x")


if __name__ == "__main__":
    main()
