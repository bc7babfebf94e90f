"""Transports are held against real hosts too."""

from tests.beds import bed, ssh_home, testbed

__all__ = ["bed", "ssh_home", "testbed"]
