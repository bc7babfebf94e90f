"""(topology, facts) -> Plan: placement, GPUs, ports, ranks, argv, env, kv_transfer_config. Pure."""
