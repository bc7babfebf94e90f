"""Reads what pdctl must know of vLLM out of published wheels, without importing vLLM: `python -m tools.vllm_facts`."""
