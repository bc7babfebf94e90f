"""All commands: name -> module and one line of help. A command is imported when it is called."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "plan": ("pdctl.cli.commands.plan", "Show everything `up` would do: GPUs, ports, argv, env, kv-transfer-config"),
    "check": (
        "pdctl.cli.commands.check",
        "Look at the hosts before anything starts, or judge a hand-written kv-transfer-config",
    ),
    "up": ("pdctl.cli.commands.up", "Start the cluster, wait until it is ready, prove that KV moves"),
    "status": ("pdctl.cli.commands.status", "Show the instances with state, GPUs, ports, load"),
    "logs": ("pdctl.cli.commands.logs", "Show what the instances wrote, merged by time"),
    "verify": ("pdctl.cli.commands.verify", "Prove that the KV cache moves from prefill to decode and is used"),
    "down": ("pdctl.cli.commands.down", "Stop the cluster and prove that nothing is left"),
    "ls": ("pdctl.cli.commands.ls", "List the clusters known on this machine"),
    "proxy": ("pdctl.cli.commands.proxy", "Run the built-in proxy alone, in front of engines that others run"),
    "sim": ("pdctl.cli.commands.sim", "Run one simulated engine, with the flags of `vllm serve`"),
    "connectors": ("pdctl.cli.commands.connectors", "Show vLLM's KV connectors and the releases that have them"),
    "schema": ("pdctl.cli.commands.schema", "Print the JSON Schema of the topology file"),
    "version": ("pdctl.cli.commands.version", "Show versions"),
}
