"""What can be a host's data address, decided by its text alone."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_LOCAL_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback", "loopback"}
)
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62}))*\.?")


@dataclass(frozen=True)
class OnlyHere:
    """Why an address means nothing to another machine."""

    why: str
    wildcard: bool = False
    """It means every address of a machine: to be listened on, not to be connected to."""


def only_here(address: str) -> OnlyHere | None:
    """Return why nobody else can connect to an address; None for one that others can."""
    plain = address.strip().lower().rstrip(".")
    if plain in _LOCAL_NAMES or plain.endswith(".localhost"):
        return OnlyHere("means each machine itself")
    if plain in ("*", "0", "::", "[::]"):
        return OnlyHere("means every address of a machine", wildcard=True)
    ip = _ip(plain)
    if ip is None:
        short = re.fullmatch(r"127(?:\.[0-9]{1,3}){0,2}", plain)  # 127.1 is 127.0.0.1 to the C library
        return OnlyHere("is a loopback address, which means each machine itself") if short else None
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    if mapped.is_unspecified:
        return OnlyHere("means every address of a machine", wildcard=True)
    return OnlyHere("is a loopback address, which means each machine itself") if mapped.is_loopback else None


def address_fault(address: str) -> str:
    """Return what keeps a text from being the address of one machine, or nothing."""
    ip = _ip(address)
    if ip is not None:
        broadcast = ip == ipaddress.IPv4Address("255.255.255.255")
        return "is not the address of one machine" if ip.is_multicast or broadcast else ""
    if "://" in address:
        return "is a URL, not an address"
    if "/" in address:
        return "is a network, not the address of one machine"
    if re.fullmatch(r"[0-9.]+", address):
        return "is no IPv4 address"
    if re.fullmatch(r"\[?[^:]+\]?:[0-9]+", address):
        return "has a port, which pdctl chooses itself"
    if not _NAME.fullmatch(address):
        return "is no IPv6 address" if ":" in address else "is neither an IP address nor a host name"
    return ""


def is_loopback_interface(interface: str | None) -> bool:
    """Tell whether a network interface leads to this machine only."""
    return interface in ("lo", "lo0")


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    plain = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    try:
        return ipaddress.ip_address(plain)
    except ValueError:
        return None
