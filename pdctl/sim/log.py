"""Log lines that look like vLLM's."""

from __future__ import annotations

import os
import time


def line(text: str, *, process: str = "EngineCore", place: str = "core.py:1", level: str = "INFO") -> None:
    """Print one line at once: pdctl reads phases from it."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"({process} pid={os.getpid()}) {level} {stamp} [{place}] {text}", flush=True)


def error(*texts: str, process: str = "EngineCore") -> None:
    """Print the lines of an error."""
    for text in texts:
        line(text, process=process, level="ERROR")


def engine_failed() -> None:
    """Print what vLLM says last when its engine does not come up: the wrapper, never the cause."""
    line("EngineCore failed to start.", level="ERROR")
    print(f"(APIServer pid={os.getpid()}) Traceback (most recent call last):", flush=True)
    print(
        f"(APIServer pid={os.getpid()}) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore': 1}",
        flush=True,
    )
