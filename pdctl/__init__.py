"""docker compose for prefill/decode-disaggregated LLM serving: plan, launch, prove, stop."""

__version__ = "0.1.0"
