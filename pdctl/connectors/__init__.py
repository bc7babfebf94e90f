"""vLLM's KV connectors, one module each: versions, config, env, ports, rules, and the hand-over messages without I/O."""
