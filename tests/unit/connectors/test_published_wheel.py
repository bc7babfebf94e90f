"""The P2pNccl example against the published vLLM 0.22.1: its own KVTransferConfig class takes what pdctl writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.planning import FACTS, plan_of
from tools.vllm_facts.wheels import NoIndex, read_from_wheel, wheel_url

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STUBS = {
    "vllm/__init__.py": "",
    "vllm/config/__init__.py": "",
    "vllm/envs.py": "",
    "vllm/logger.py": "import logging\ndef init_logger(name): return logging.getLogger(name)\n",
    "vllm/utils/__init__.py": "",
    "vllm/utils/hashing.py": "from hashlib import sha256 as safe_hash\n",
    "vllm/platforms.py": "class current_platform: device_type = 'cuda'\n",
    "torch.py": "class dtype: pass\n",
}
"""What the two published files import and don't use to check a config."""
READ = "import json, sys; from vllm.config.kv_transfer import KVTransferConfig as K; print(json.dumps([vars(K(**one)) for one in json.load(sys.stdin)]))"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The KVTransferConfig sources of the wheel, beside stubs of what they import."""
    try:
        url = wheel_url("vllm==0.22.1")
    except NoIndex as error:
        pytest.skip(f"no package index can be reached: {error}")
    sources = read_from_wheel(url, "vllm/config/kv_transfer.py", "vllm/config/utils.py")
    tree = tmp_path_factory.mktemp("published")
    for name, text in STUBS.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for name, source in sources.items():
        (tree / name).write_bytes(source)
    return tree


def read(published: Path, configs: list[dict[str, object]]) -> subprocess.CompletedProcess[str]:
    """Build the class's objects from configs, in an interpreter that sees the published sources first."""
    env = {**os.environ, "PYTHONPATH": str(published)}
    return subprocess.run(
        [sys.executable, "-c", READ], input=json.dumps(configs), capture_output=True, text=True, env=env, timeout=60
    )


def test_the_class_of_the_published_wheel_accepts_the_example(published: Path) -> None:
    plan = plan_of((ROOT / "examples" / "qwen3-32b-p2p.yaml").read_text(), FACTS)
    configs = [dict(one.kv_transfer_config) for one in plan.instances if one.kv_transfer_config]
    assert len(configs) == 2
    done = read(published, configs)
    assert done.returncode == 0, done.stderr
    producer, consumer = json.loads(done.stdout)
    assert (producer["kv_role"], consumer["kv_role"]) == ("kv_producer", "kv_consumer")
    for one, given in ((producer, configs[0]), (consumer, configs[1])):
        assert {key: one[key] for key in given} == given


def test_the_class_refuses_what_is_wrong(published: Path) -> None:
    """So that the test above can fail."""
    done = read(
        published, [{"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer", "enable_async_transfers": True}]
    )
    assert done.returncode != 0
    assert "unexpected_keyword_argument" in done.stderr
