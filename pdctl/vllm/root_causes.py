"""What an engine's log says about why it died: the cause, not the wrapper that is printed last.

Patterns and their meaning: vLLM 0.22.1 and 0.33.0 (v1/engine/core.py, v1/executor/multiproc_executor.py, v1/core/kv_cache_utils.py,
config/*.py) and logs of real runs (tests/data/logs). The first match of the earliest kind in the log wins; generic wrappers never do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class RootCause:
    """Why an engine died."""

    cause: str
    """One sentence without a full stop."""
    fix: str
    """What to do; empty where that is not known."""
    evidence: tuple[str, ...]
    """The decisive lines, oldest first."""


@dataclass(frozen=True)
class _Signature:
    pattern: re.Pattern[str]
    cause: str
    """May use \\1 groups."""
    fix: str


def _signature(pattern: str, cause: str, fix: str) -> _Signature:
    return _Signature(re.compile(pattern), cause, fix)


_SIGNATURES: tuple[_Signature, ...] = (
    _signature(
        r"error: unrecognized arguments: (.+)",
        r"this vLLM does not know the argument \1",
        "remove it from `args`, or use a vLLM version that has it",
    ),
    _signature(
        r"error: argument --kv-transfer-config: (?:\d+ validation errors? for KVTransferConfig)?(.*)",
        r"this vLLM refuses the KV transfer config\1",
        "check `connector.extra`, and that `engine.version` is what the host runs",
    ),
    _signature(r"error: argument ([-\w/]+): (.+)", r"the argument \1 is wrong: \2", "correct it in `args`"),
    _signature(
        r"Unsupported connector type: (\w+)",
        r"this vLLM has no connector \1",
        "use one that this version has; P2pNcclConnector ended with 0.23",
    ),
    _signature(
        r"(NIXL|Mooncake|MoRIIO) is not available",
        r"the package of \1 is not installed in the engine's environment",
        "pip install it there (nixl, mooncake-transfer-engine, mori)",
    ),
    _signature(
        r"CUDA out of memory occurred when warming up sampler with (\d+) dummy requests",
        r"out of GPU memory while warming up \1 requests",
        "lower max-num-seqs or gpu-memory-utilization",
    ),
    _signature(
        r"torch\.(?:cuda\.)?OutOfMemoryError: (CUDA out of memory[^.]*)|(CUDA out of memory)",
        "the GPU is out of memory",
        "use a larger tp, a lower max-model-len, or look who else is on the GPU",
    ),
    _signature(
        r"Free memory on device (\S+) \(([^)]*)\) on startup is less than desired GPU memory utilization",
        r"another process uses the GPU: free on \1 is \2 GiB, less than gpu-memory-utilization asks for",
        "stop the other process, or lower gpu-memory-utilization",
    ),
    _signature(
        r"Error in memory profiling\. Initial free memory",
        "another process freed GPU memory while this one measured it",
        "start the engines of one GPU one after another, or set kv-cache-memory-bytes",
    ),
    _signature(
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache after the weights",
        "raise gpu-memory-utilization, or use a larger tp (on CPU: VLLM_CPU_KVCACHE_SPACE)",
    ),
    _signature(
        r"To serve at least one request with the models?'?s? max seq len \((\d+)\).*estimated maximum model length is (\d+)",
        r"the KV cache holds \2 tokens, max-model-len asks for \1",
        "lower max-model-len to that",
    ),
    _signature(
        r"To serve at least one request with the models?'?s? max seq len \((\d+)\)",
        r"the KV cache is too small for one request of max-model-len \1",
        "lower max-model-len or raise gpu-memory-utilization",
    ),
    _signature(
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)",
        r"max-model-len \1 is more than the model's own limit (\2)",
        "lower max-model-len",
    ),
    _signature(
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        r"the engine wants \1 GPUs and sees \2",
        "lower tp, or check which GPUs the host has",
    ),
    _signature(
        r"[Tt]otal number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        r"tp \2 does not divide the model's \1 attention heads",
        "use a tp that does",
    ),
    _signature(
        r"Address already in use \(addr='tcp://([^']+)'\)",
        r"the KV port \1 is taken by another process",
        "stop it, or choose another `ports.base`",
    ),
    _signature(
        r"\[Errno 98\].*address already in use|OSError: \[Errno 98\]|error while attempting to bind on address",
        "the port is taken by another process",
        "stop it, or choose another `ports.base`",
    ),
    _signature(
        r"can only concatenate str \(not \"int\"\) to str", "proxy_port was given as a number", "let pdctl set it"
    ),
    _signature(
        r"Request id \S* ?does not contain hostname and port",
        "a request reached the engine that did not come through the proxy; P2pNccl ends on that",
        "send requests to the proxy only",
    ),
    _signature(
        r"KV connector (\w+) is incompatible with PYTORCH_CUDA_ALLOC_CONF",
        r"\1 does not work with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "unset it",
    ),
    _signature(
        r"Connector (\w+) does not support HMA",
        r"\1 does not support the hybrid KV cache",
        "set disable-hybrid-kv-cache-manager",
    ),
    _signature(
        r"NIXL compatibility hash mismatch",
        "the two engines differ in vLLM version, model string, dtype or layout",
        "make them equal",
    ),
    _signature(
        r"NCCL error[^:]*: (.+)|DistBackendError: (NCCL error.*)",
        "NCCL failed",
        "look at `interface` and NCCL_DEBUG=INFO",
    ),
    _signature(
        r"Duplicate GPU detected", "NCCL refuses two ranks on one GPU", "give each its own GPU, or set share_gpus"
    ),
    _signature(
        r"No module named '?vllm(?:\.|'|$)",
        "this interpreter has no vLLM",
        "name the right one with `engine.python` or `engine.activate`",
    ),
    _signature(
        r"ModuleNotFoundError: No module named '([^']+)'",
        r"the engine's environment lacks the module \1",
        "install it there",
    ),
    _signature(
        r"(?:GatedRepoError|401 Client Error|Access to model (\S+) is restricted)",
        "the model is gated on the hub",
        "set HF_TOKEN, or use a local path",
    ),
    _signature(
        r"(?:RepositoryNotFoundError|HFValidationError: |is not a local folder and is not a valid model identifier|Repo id must be in the form)",
        "the model is neither a folder on the host nor a model of the hub",
        "check `model`",
    ),
    _signature(
        r"(?:LocalEntryNotFoundError|We couldn't connect to '?https?://|offline mode is enabled|MaxRetryError)",
        "the model is not on the host and the hub cannot be reached",
        "use a local path",
    ),
    _signature(
        r"Invalid repository ID or local directory specified: '([^']+)'",
        r"there is no model at \1",
        "check `model`: it must be on this host",
    ),
    _signature(
        r"No such file or directory: '([^']*(?:config\.json|tokenizer|safetensors)[^']*)'",
        r"the model lacks \1",
        "check the model's folder",
    ),
    _signature(
        r"Model architectures? \[?([^\]]*?)\]? (?:are|is) not supported",
        r"this vLLM does not support the architecture \1",
        "use another version or model",
    ),
    _signature(
        r"Bfloat16 is only supported on GPUs with compute capability", "the GPU has no bfloat16", "set dtype: float16"
    ),
    _signature(
        r"(?:No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|CUDA driver version is insufficient)",
        "the engine sees no usable GPU",
        "check the driver and CUDA_VISIBLE_DEVICES, or set engine.device: cpu",
    ),
    _signature(r"Too many open files", "the limit on open files is too low", "raise it with `ulimit -n`"),
    _signature(r"No space left on device", "the disk (or /dev/shm) is full", "make room"),
    _signature(
        r"Bus error|unable to open shared memory|/dev/shm.*No space",
        "shared memory is too small",
        "enlarge /dev/shm (docker: --shm-size or --ipc=host)",
    ),
    _signature(
        r"Illegal instruction",
        "the CPU lacks an instruction that this build uses",
        "use another build, or dtype: float32",
    ),
    _signature(
        r"Worker proc (\S+) died unexpectedly.*exit code: -9",
        r"\1 was killed with SIGKILL, as the kernel does when memory runs out",
        "look at dmesg; use less memory",
    ),
    _signature(
        r"Worker proc (\S+) died unexpectedly.*exit code: -4",
        r"\1 died of an illegal instruction",
        "on CPU use dtype: float32",
    ),
    _signature(r"Worker proc (\S+) died unexpectedly", r"\1 died", "look at the lines before it"),
)
_WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|WorkerProc failed to start|WorkerProc initialization failed"
    r"|EngineCore encountered (?:a fatal error|an issue)|Frontend process failed|shutting down executor|EngineDeadError"
    r"|See root cause above|leaked (?:semaphore|shared_memory)"
)
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure))(?:: (.*))?$")
_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(
    r"^(?:\([\w ]+(?: pid=\d+)?\) ?)*(?:(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] )?)?"
)
_CONTEXT = 6
_HARMLESS = re.compile(r"(?:INFO|WARNING|DEBUG) \d\d-\d\d \d\d:")
"""Lines about something that was dealt with: a start warns about a dozen things that it can do without."""
_USAGE = re.compile(r": error: ")


def find_root_cause(lines: Sequence[str]) -> RootCause | None:
    """Return why the engine that wrote these lines died; None if nothing in them says it."""
    texts = [_PREFIX.sub("", line.rstrip()) for line in lines]
    for index, text in enumerate(texts):
        if _HARMLESS.search(lines[index]) or (_WRAPPERS.search(text) and "died unexpectedly" not in text):
            continue
        for signature in _SIGNATURES:
            match = signature.pattern.search(text)
            if match:
                cause = _expand(signature.cause, match)
                return RootCause(_with_fields(cause, texts, index), signature.fix, _around(lines, texts, index))
    return _first_exception(lines, texts)


def _with_fields(cause: str, texts: Sequence[str], index: int) -> str:
    """Add the fields that a pydantic error lists in the lines after it."""
    if "validation error" not in texts[index] or "argument" not in texts[index]:
        return cause
    fields = [text for text in texts[index + 1 : index + 20] if re.fullmatch(r"[a-z_][\w.]*", text)]
    return f"{cause}: {', '.join(fields)}" if fields else cause


def _expand(cause: str, match: re.Match[str]) -> str:
    text = re.sub(r"\\(\d)", lambda group: (match[int(group[1])] or "").strip(), cause)
    return text.rstrip(" :.")


def _around(lines: Sequence[str], texts: Sequence[str], index: int) -> tuple[str, ...]:
    """Return the line, the last frames of its traceback, and what a pydantic error says under it."""
    start = index
    if any(_TRACEBACK in text for text in texts[:index]) and not _USAGE.search(texts[index]):
        while start > 0 and index - start < _CONTEXT and texts[start - 1].startswith("  "):
            start -= 1
    end = index + 1
    while "validation error" in texts[index] and end < min(len(lines), index + 4) and texts[end].strip():
        end += 1
    return tuple(lines[start:end])


def _first_exception(lines: Sequence[str], texts: Sequence[str]) -> RootCause | None:
    """Return the earliest exception that is no wrapper, with the last frames of its traceback."""
    inside = False
    for index, text in enumerate(texts):
        if _TRACEBACK in text:
            inside = True
            continue
        match = _EXCEPTION.search(text) if inside and not text.startswith("  ") else None
        if match and not _WRAPPERS.search(text):
            what = f"{match[1].rsplit('.', 1)[-1]}: {match[2]}" if match[2] else match[1]
            return RootCause(what.rstrip(". "), "", _around(lines, texts, index))
        if match:
            inside = False
    return None
