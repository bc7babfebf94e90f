"""Logs: bounded, complete, merged, followed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.integration.shim.conftest import SERVE, SERVER, SHIM, Cluster, Lines

COUNT = "import sys, time\nfor n in range({count}): print('line', n, 'x' * {width})\nsys.stdout.flush()\n"


def size(cluster: Cluster, name: str = "a") -> int:
    total = 0
    for path in (cluster.root / name / "log").glob("*.log"):
        with suppress(FileNotFoundError):  # rotated away between the listing and the look
            total += path.stat().st_size
    return total


@pytest.mark.slow
def test_a_gibibyte_of_output_stays_bounded(cluster: Cluster, record_property: Callable[[str, object], None]) -> None:
    """Neither the disk nor the supervisor's memory grows, and the instance is not held up."""
    flood = "import os\nchunk = (b'y' * 99 + b'\\n') * 10000\nfor _ in range(1074): os.write(1, chunk)\nprint('end of flood', flush=True)\n"
    began = time.monotonic()
    cluster.start(
        cluster.spec("a", flood + SERVE, logs={"max_bytes": 4_000_000, "keep": 3}, health={"startup_timeout_s": 200})
    )
    shim = cluster.state()["shim_pid"]
    most = 0
    end = time.monotonic() + 200
    while cluster.state()["state"] != "ready":
        assert time.monotonic() < end
        most = max(most, size(cluster))
        time.sleep(0.2)
    rate = 1074 / (time.monotonic() - began)
    record_property("MB/s", round(rate))
    print(f"{rate:.0f} MB/s")
    assert rate > 10, "a supervisor this slow holds its instance up"
    assert most <= 4 * 4_000_000
    peak_kib = int(
        next(
            line for line in Path(f"/proc/{shim}/status").read_text().splitlines() if line.startswith("VmHWM")
        ).split()[1]
    )
    assert peak_kib < 80_000
    assert "end of flood" in cluster.texts("--tail", "5")


def test_tail_since_grep_and_previous(cluster: Cluster) -> None:
    flag = cluster.root.parent / "second"
    code = f"import os\nprint('run', 2 if os.path.exists({str(flag)!r}) else 1, flush=True)\n" + COUNT.format(
        count=500, width=10
    )
    cluster.start(cluster.spec("a", code + SERVE), cluster.spec("b", COUNT.format(count=3, width=1) + SERVE))
    first = cluster.wait("ready")
    cluster.wait("ready", "b")
    assert [text.split()[1] for text in cluster.texts("a", "--tail", "4")[:3]] == ["497", "498", "499"]
    assert cluster.texts("a", "--grep", "line 1[23] ") == ["line 12 xxxxxxxxxx", "line 13 xxxxxxxxxx"]
    assert len(cluster.logs("--grep", "line 0")) == 2
    stamps = [line.split(" ")[1] for line in cluster.logs()]
    assert stamps == sorted(stamps), "merged by time"
    between = time.time()
    flag.touch()
    import os

    os.kill(first["pid"], 9)
    eventually(lambda: cluster.state()["restarts"] == 1 and cluster.state()["state"] == "ready", 15)
    assert cluster.texts("a", "--run", "current")[0] == "run 2"
    assert cluster.texts("a", "--run", "previous")[0] == "run 1"
    assert "run 2" not in cluster.texts("a", "--run", "previous")
    assert [text for text in cluster.texts("a", "--since", repr(between)) if text.startswith("run")] == ["run 2"]
    assert [text for text in cluster.texts("a", "--until", repr(between)) if text.startswith("run")] == ["run 1"]


def test_following_over_rotations_loses_and_repeats_nothing(cluster: Cluster) -> None:
    count = 6000
    code = f"import time\nfor n in range({count}):\n    print('line', n, 'x' * 60, flush=True)\n    if n % 50 == 0: time.sleep(0.01)\n"
    follower = None
    try:
        cluster.start(
            cluster.spec(
                "a",
                "import time; time.sleep(1)\n" + SERVER + code + "server.serve_forever()\n",
                logs={"max_bytes": 60_000, "keep": 8},
            )
        )
        follower = subprocess.Popen(
            [*SHIM, "logs", str(cluster.root), "a", "--follow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        lines = Lines(follower)
        numbers: list[int] = []
        while len(numbers) < count and (line := lines.next(20)) is not None:
            words = line.split()
            if words[2] == b"line":
                numbers.append(int(words[3]))
        assert numbers == list(range(count))
        assert len(list((cluster.root / "a" / "log").glob("*.log"))) > 3, "it was rotated"
    finally:
        if follower is not None:
            assert follower.stdin is not None
            follower.stdin.close()
            follower.wait(5)
            follower.stdout.close()  # type: ignore[union-attr]


def test_bytes_that_are_no_text_and_lines_without_end(cluster: Cluster) -> None:
    code = "import os\nos.write(1, b'caf\\xe9 \\xff\\n' + b'z' * 10_000_000 + b'\\nafter\\nno newline')\n"
    cluster.start(cluster.spec("a", code, logs={"max_bytes": 30_000_000}))
    cluster.wait("failed")
    texts = cluster.texts()
    assert texts[0].startswith("caf")
    assert sum(text.count("z") for text in texts) == 10_000_000
    assert texts[-2:] == ["after", "no newline"]
