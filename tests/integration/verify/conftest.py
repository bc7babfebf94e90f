"""Processes that are ended after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.verify.clusters import Running


@pytest.fixture
def running() -> Iterator[Running]:
    processes: Running = []
    yield processes
    for one in processes:
        one.terminate()
    for one in processes:
        one.wait(10)
