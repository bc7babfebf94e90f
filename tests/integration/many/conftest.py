"""Tests on several hosts."""

from tests.beds import bed, many, ssh_home, testbed

__all__ = ["bed", "many", "ssh_home", "testbed"]
