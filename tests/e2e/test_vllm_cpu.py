"""Real vLLM on CPU, KV over NIXL: 1P1D and 2P1D from one file, compared with a plain vLLM."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pdctl.vllm.metrics import Metrics, growth, parse_metrics
from tests.conftest import Pdctl, eventually, free_block, processes_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

PROMPTS = (
    "The quick brown fox jumps over the lazy dog, twice and then once more for the camera",
    "Prefill computes the KV cache of a prompt; decode reads it over the network, block by block",
    "0123456789 0123456789 0123456789 0123456789 0123456789 and so on and so on",
)
MESSAGES = [{"role": "user", "content": "Say something that nobody has said before, at some length, please"}]
MOST = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


@dataclass
class Real:
    """A pdctl with a topology of real engines."""

    pdctl: Pdctl
    file: Path

    def up(self, *args: str) -> dict[str, Any]:
        return self.pdctl.ok("up", str(self.file), "-y", "--json", *args, timeout_s=900).json


@pytest.fixture
def real(pdctl: Pdctl, vllm_python: Path, tiny_model: Path) -> Real:
    base = free_block()
    file = pdctl.topology(
        "real.yaml",
        name="real",
        model=str(tiny_model),
        engine={
            "kind": "vllm",
            "device": "cpu",
            "python": str(vllm_python),
            "args": {"dtype": "float32", "max-model-len": 1024, "enforce-eager": True},
            "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
        },
        restart={"policy": "never"},
        ports={"base": base, "size": 90},
        proxy={"port": base + 95},
    )
    return Real(pdctl, file)


def post(url: str, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        data: bytes = answer.read()
        return data


def answers(url: str, *, stream: bool) -> list[str]:
    """Return the texts of all prompts and of one chat."""
    texts = []
    for prompt in PROMPTS:
        body = {"model": "tiny-llama", "prompt": prompt, "stream": stream, **MOST}
        texts.append(text_of(post(url, "/v1/completions", body), stream=stream))
    body = {"model": "tiny-llama", "messages": MESSAGES, "stream": stream, **MOST}
    return [*texts, text_of(post(url, "/v1/chat/completions", body), stream=stream)]


def text_of(data: bytes, *, stream: bool) -> str:
    if not stream:
        choice = json.loads(data)["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    lines = data.decode().splitlines()
    assert lines[-2] == "data: [DONE]" or lines[-1] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)


def metrics(url: str) -> Metrics:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return parse_metrics(answer.read().decode())


def worker_of(pid: int) -> int:
    """Return the engine's worker: the process below `pid` that vLLM calls VLLM::Worker, or the lowest one."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    below, left = [], [pid]
    while left:
        found = children.get(left.pop(), [])
        below += found
        left += found
    assert below, "the engine has children"
    return next((one for one in below if "Worker" in names.get(one, "")), below[-1])


def test_real_engines_from_one_file(real: Real) -> None:
    """One story, since each start takes half a minute: plain, 1P1D, 2P1D, a killed worker, down."""
    pdctl = real.pdctl

    plain = real.up("--set", "layout=0P0D", "--set", "aggregated.replicas=1", "--set", "connector=null")
    wanted = answers(plain["url"], stream=False)
    assert len(set(wanted)) == len(wanted), "the tiny model tells prompts apart"
    assert pdctl.ok("down", "--json", timeout_s=120).json["clean"] is True
    assert processes_of(pdctl.home) == {}

    pair = real.up()
    assert pair["verify"]["ok"] is True, pair["headline"]
    (report,) = pair["verify"]["pairs"]
    assert report["verdict"] == "used"
    assert report["tokens"] == report["expected"] > 0
    assert report["bytes"] > 0
    consumer = pdctl.instance("consumer-0")
    before = metrics(consumer["url"])
    assert answers(pair["url"], stream=False) == wanted
    after = metrics(consumer["url"])
    prompt_tokens = growth(before, after, "vllm:prompt_tokens")
    assert prompt_tokens
    assert growth(before, after, "vllm:prompt_tokens_by_source", source="external_kv_transfer") == prompt_tokens
    assert (growth(before, after, "vllm:nixl_bytes_transferred_sum") or 0) > 0
    assert not growth(before, after, "vllm:nixl_num_failed_transfers")
    assert answers(pair["url"], stream=True) == wanted

    plan = pdctl.ok("plan", str(real.file), "--format", "json", timeout_s=60).json
    logs = pdctl.ok("logs", "consumer-0", "--no-prefix", timeout_s=60).out
    logged = re.search(r"KV cache size: ([\d,]+) tokens", logs)
    assert logged, "vLLM says how many tokens its KV cache holds"
    assert plan["fit"]["roles"]["decode"]["tokens"] == int(logged[1].replace(",", ""))

    three = real.up("--set", "layout=2P1D")
    assert {one["instance"]: one["action"] for one in three["changes"]} == {"producer-1": "start", "proxy": "restart"}
    assert three["verify"]["ok"] is True, three["headline"]
    assert {(one["producer"], one["verdict"]) for one in three["verify"]["pairs"]} == {
        ("producer-0", "used"),
        ("producer-1", "used"),
    }
    assert answers(three["url"], stream=True) == wanted

    os.kill(worker_of(pdctl.instance("consumer-0")["pid"]), signal.SIGKILL)
    seen = eventually(
        lambda: (one := pdctl.instance("consumer-0"))["state"] in ("failed", "unhealthy") and one,
        60,
        "the lost worker is seen",
    )
    assert seen["reason"]
    assert pdctl("status").code == 3
    down = pdctl.ok("down", "--json", timeout_s=120).json
    assert down["clean"] is True
    assert processes_of(pdctl.home) == {}
