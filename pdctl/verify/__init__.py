"""Prove that KV moves from prefill to decode and is used: only tokens prove it."""

from pdctl.verify.report import VerifyReport
from pdctl.verify.run import verify_cluster

__all__ = ["VerifyReport", "verify_cluster"]
