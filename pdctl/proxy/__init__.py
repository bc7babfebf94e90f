"""The data plane: takes OpenAI-API requests, sends each to a producer for prefill, then to a consumer for decode."""
