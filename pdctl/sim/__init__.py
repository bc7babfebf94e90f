"""A simulated engine: vLLM's flags, API, start-up log and KV hand-shakes over real sockets, with tokens that depend on the KV it holds.

For machines without GPU or vLLM, for tests, and for rehearsing a topology. It never pretends to be vLLM.
"""
