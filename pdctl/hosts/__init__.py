"""Hosts: a Transport runs an argv and moves bytes, here or elsewhere; knows nothing of vLLM."""
