"""Every result as text for people. Takes the JSON form, so that people and scripts are told the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from pdctl.render.duration import ago, short_duration

Data = Mapping[str, Any]


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


def show_plan(data: Data) -> None:
    """Print the plan as tables."""
    from pdctl.render.console import print_rows

    gpus = data["gpus"]
    have = f", {gpus['available']} available" if gpus.get("available") is not None else ""
    _out(f"{data['cluster']}: {data['model']} on {data['engine']}, {data['connector'] or 'no P/D'}")
    _out(f"GPUs: {gpus['formula']}{have}")
    _out("")
    rows = []
    for one in data["instances"]:
        ports = {use: port for use, port in one["ports"].items() if use != "http"}
        others = ", ".join(f"{use} {_port(port)}" for use, port in ports.items()) or "-"
        config = one["kv_transfer_config"] or {}
        rows.append((
            one["name"], one["role"], one["host"], ",".join(one["gpus"]) or "-", f"{one['address']}:{_port(one['ports']['http'])}",
            others, config.get("kv_role", "-"),
        ))  # fmt: skip
    columns = ("NAME", "ROLE", "HOST", "GPUS", "HTTP", "OTHER PORTS", "KV ROLE")
    print_rows(columns, rows, first_to_go=("ROLE", "KV ROLE"))
    _show_fit(data.get("fit"))
    for warning in data["warnings"]:
        _out(f"\nwarning: {warning}")
    _out("\nargv, environment and kv-transfer-config of each instance: --format json, sh or yaml")


def _show_fit(fit: Data | None) -> None:
    """Print the memory figures: a row for each role, then what crosses."""
    from pdctl.render.console import print_rows

    if fit is None:
        return
    if fit["roles"]:
        _out("\nmemory of each GPU (estimate):")
        columns = ("ROLE", "WEIGHTS", "OTHER", "KV", "B/TOKEN", "TOKENS", "CONCURRENCY")
        print_rows(columns, [_fit_row(key, one) for key, one in fit["roles"].items()])
    crossing = fit["crossing"]
    if crossing:
        times = ", ".join(f"{_time(seconds)} on {link}" for link, seconds in crossing["seconds"].items())
        _out(
            f"KV from prefill to decode: {crossing['bytes'] / 1e6:.1f} MB for {crossing['tokens']} prompt tokens: {times} (line rates)"
        )
    for note in fit["notes"]:
        _out(note)


def _fit_row(key: str, one: Data) -> tuple[str, ...]:
    kv = "unknown GPU" if one["kv_gib"] is None else f"{one['kv_gib']:.1f} GiB"
    tokens = "-" if one["tokens"] is None else f"{one['tokens']:,}"
    many = "-" if one["concurrency"] is None else f"{one['concurrency']:.1f} x {one['max_model_len']}"
    other = f"{one['reserve_gib']:.1f} GiB"
    return key, f"{one['weight_gib']:.1f} GiB", other, kv, f"{one['kv_bytes_per_token']:,.0f}", tokens, many


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _port(port: Any) -> str:
    return f"{port[0]}-{port[1]}" if isinstance(port, list) else str(port)


def show_up(data: Data) -> None:
    """Print what `up` did and where to send requests."""
    changes = data["changes"]
    if data["dry_run"]:
        signs = {"start": "+", "restart": "~", "stop": "-"}
        for change in changes:
            _out(f"{signs[change['action']]} {change['instance']}: {change['cause']}")
        _out("nothing to do" if not changes else "dry run: nothing was done")
        return
    done = (
        "nothing to do, everything runs as planned"
        if not changes
        else f"{len(changes)} instance{'s' if len(changes) > 1 else ''} changed"
    )
    state = "ready" if data["waited"] else "started"
    _out(f"{data['cluster']}  {state} in {data['seconds']:.1f} s  ({done})")
    for warning in data["warnings"]:
        _out(f"warning: {warning}")
    if data["headline"]:
        _out(data["headline"])
    for warning in (data["verify"] or {}).get("warnings") or ():
        _out(f"warning: {warning}")
    if data["url"]:
        model = data["model"]
        _out(f"\n{data['url']}/v1  serves {model}")
        _out(f"  curl {data['url']}/v1/completions -H 'content-type: application/json' \\")
        _out(f'       -d \'{{"model": "{model}", "prompt": "Hello", "max_tokens": 16}}\'')


def show_status(data: Data) -> None:
    """Print the headline and the table of instances."""
    from rich.text import Text

    from pdctl.render.console import STATE_STYLES, console, print_rows

    headline = Text(f"{data['cluster']}  ")
    headline.append(data["state"], STATE_STYLES.get(data["state"], ""))
    short = {"producer": "P", "consumer": "D", "aggregated": "A"}
    ready = " ".join(f"{count}{short[role]}" for role, count in data["ready"].items())
    headline.append(f"  {ready}  {data['url'] or ''}{_verified(data)}".rstrip())
    if data["engine"] and data["engine"]["kind"] == "sim":
        headline.append("  (simulated engines)", "yellow")
    console().print(headline)
    columns = ("NAME", "ROLE", "HOST", "GPUS", "STATE", "PORT", "PID", "UP", "RESTARTS", "REQ", "KV%", "PEERS")
    rows = [
        (
            one["name"], one["role"], one["host"], ",".join(one["gpus"]) or "-", _state(one), str(one["port"] or "-"),
            str(one["pid"] or "-"), short_duration(one["uptime_s"]), str(one["restarts"]), _load(one), _percent(one["kv_usage"]),
            one["peers"] or "-",
        )
        for one in data["instances"]
    ]  # fmt: skip
    if rows:
        print_rows(columns, rows, first_to_go=("ROLE", "PEERS", "HOST", "KV%", "PID"))
    for one in data["instances"]:
        if one["reason"] and one["state"] not in ("ready", "stopped"):
            _out(f"{one['name']}: {one['reason']}")
            if one["cause"]:
                _out(f"  cause: {one['cause']}{'; fix: ' + one['fix'] if one['fix'] else ''}")
    for host, what in data["unreachable"].items():
        _out(f"host {host} does not answer: {what}")


def _state(one: Data) -> Any:
    from rich.text import Text

    from pdctl.render.console import STATE_STYLES

    text = f"{one['state']} ({one['phase']})" if one["phase"] else str(one["state"])
    return Text(text, STATE_STYLES.get(one["state"], ""))


def _load(one: Data) -> str:
    return "-" if one["running"] is None else f"{one['running']}/{one['waiting'] or 0}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}"


def _verified(data: Data) -> str:
    note = data["verify"]
    if not note or data["state"] == "stopped":
        return ""
    return f"  {note['headline']}, {ago(note['ago_s'])}"


def show_down(data: Data) -> None:
    """Print what was stopped, and the proof."""
    if data["stopped"]:
        _out(f"stopped {', '.join(data['stopped'])} in {data['seconds']:.1f} s")
    for left in data["left"]:
        _out(f"still running: {left['instance']} pid {left['pid']} ({left.get('command') or '?'})")
    for port in data["ports_busy"]:
        _out(f"still listened on: port {port}")
    for host, what in data["unreachable"].items():
        _out(f"host {host} does not answer, so nothing is known of it: {what}")
    if data["unreachable"]:
        _out("run `pdctl down` again when it is back")
    if data["clean"]:
        done = "" if data["stopped"] else "already stopped; "
        _out(f"{data['cluster']}: {done}nothing is left: no process, no port, no shared memory")
    if data["purged"]:
        _out("logs and state are removed")


def show_verify(data: Data) -> None:
    """Print a verification."""
    from pdctl.render.verification import show_verification

    show_verification(data)


def show_ls(data: Data) -> None:
    """Print the known clusters."""
    from pdctl.render.console import print_rows

    if not data["clusters"]:
        _out("no cluster is known here; start one with `pdctl up FILE`")
        return
    rows = [
        (one["cluster"], one["state"], str(one["instances"]), one["url"] or "-", one["topology"])
        for one in data["clusters"]
    ]
    print_rows(("NAME", "STATE", "INSTANCES", "URL", "TOPOLOGY"), rows, first_to_go=("INSTANCES",))


def show_causes(data: Data) -> None:
    """Print why instances failed, and what they live on with."""
    if not data["causes"]:
        _out("no cause of a failure was found in these logs")
    for one in data["causes"]:
        times = f" ({one['count']} times)" if one.get("count", 1) > 1 else ""
        _out(f"{one['instance']}: {one['cause']}{times}")
        for line in one["lines"]:
            _out(f"  | {line}")
        if one["fix"]:
            _out(f"  fix: {one['fix']}")
        if one["releases"]:
            _out(f"  said by vLLM {' and '.join(one['releases'])}")


def show_connectors(data: Data) -> None:
    """Print the table of connectors, for one release if one was asked for."""
    from pdctl.render.console import print_rows

    asked = data["asked"]
    rows = []
    for one in data["connectors"]:
        if asked and not one["in_this_release"]:
            continue
        front = "pdctl" if one["proxied_by_pdctl"] else "its own"
        rows.append((
            one["name"], one["class_names"][0], ", ".join(one["releases"]), "yes" if one["disaggregates"] else "cache",
            front if one["disaggregates"] else "-", {True: "yes", False: "no", None: "-"}[one["hybrid_kv_cache"]],
        ))  # fmt: skip
    if asked:
        refused = "refused" if data["unknown_fields_refused"] else "ignored"
        nixl = data["nixl_connector_version"]
        _out(
            f"vLLM {data['vllm']}: unknown fields of --kv-transfer-config are {refused}{f', NIXL connector version {nixl}' if nixl else ''}"
        )
        _out(f"its fields: {', '.join(data['kv_config_fields'])}\n")
    print_rows(("NAME", "CLASS", "VLLM", "P/D", "PROXY", "HYBRID"), rows, first_to_go=("HYBRID", "CLASS"))
    if asked:
        gone = [one["name"] for one in data["connectors"] if not one["in_this_release"]]
        if gone:
            _out(f"\nnot in this release: {', '.join(gone)}")
    for warning in data["warnings"]:
        _out(f"\nwarning: {warning}")


def show_connector(data: Data) -> None:
    """Print one connector."""
    (one,) = data["connectors"]
    has = "has it" if one["in_this_release"] else "does not have it"
    _out(f"{one['name']}: {', '.join(one['class_names'])}, vLLM {' and '.join(one['releases'])}; {data['vllm']} {has}")
    _out(f"disaggregates: {'yes' if one['disaggregates'] else 'no, it caches'}")
    _out(f"proxy: {one['protocol']}{'' if one['proxied_by_pdctl'] else '; not by the proxy of pdctl'}")
    if one["extra_keys"]:
        _out(f"keys of kv_connector_extra_config that {data['vllm']} reads: {', '.join(one['extra_keys'])}")
    if one["set_by_pdctl"]:
        _out(f"set by pdctl: {', '.join(one['set_by_pdctl'])}")
    for warning in data["warnings"]:
        _out(f"\nwarning: {warning}")


def show_check(data: Data) -> None:
    """Print what does not fit, one finding with its fix after another."""
    assumed = ", the newest known; --vllm names another" if data["assumed"] else ""
    for one in data["findings"]:
        _out(f"{'error' if one['fatal'] else 'note'}: {one['instance']}: {one['what']}\n  {one['fix']}")
    errors = sum(one["fatal"] for one in data["findings"])
    notes = len(data["findings"]) - errors
    said = (
        f"{errors} error{'' if errors == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"
        if data["findings"]
        else "nothing is wrong"
    )
    _out(f"{said} (vLLM {data['vllm']}{assumed})")


def show_preflight(data: Data) -> None:
    """Print one row a host, then one a finding with its fix."""
    from pdctl.render.console import print_rows

    rows = [
        (
            name, f"{one['latency_ms']:.0f} ms", one["python"], one["vllm"] or "-", "-" if one["gpus"] is None else str(one["gpus"]),
        )
        for name, one in data["hosts"].items()
    ]  # fmt: skip
    if rows:
        print_rows(("HOST", "ANSWERS IN", "PYTHON", "VLLM", "GPUS"), rows)
    for one in data["findings"]:
        _out(f"{'error' if one['blocker'] else 'warning'}: {one['host']}: {one['check']}: {one['what']}")
        if one["fix"]:
            _out(f"  {one['fix']}")
    errors = sum(one["blocker"] for one in data["findings"])
    warnings = len(data["findings"]) - errors
    _out(
        f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
        if data["findings"]
        else "nothing stands in the way"
    )


def show_version(data: Data) -> None:
    """Print versions."""
    for name, version in data.items():
        if name != "schema":
            _out(f"{name.replace('_', ' ')} {version}")


VIEWS: dict[str, Callable[[Data], None]] = {
    "plan": show_plan, "up": show_up, "status": show_status, "down": show_down, "verify": show_verify, "ls": show_ls,
    "causes": show_causes, "version": show_version, "connectors": show_connectors, "connector": show_connector, "check": show_check, "preflight": show_preflight,
}  # fmt: skip
