"""Checks which host names a page on this machine answers, and whether anything listens at an address.

A browser lets any page send requests to `127.0.0.1`, and a hostile name server can make any name resolve to it. So a
request must name one of our hosts.
"""

import ipaddress
import socket
from collections.abc import Collection, Sequence

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""The host names that need no setting: they are not resolved by a name server."""


def host_name(host: str) -> str:
    """Return the name of a `Host` header without its port, in lower case: `localhost` for `localhost:3000`."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


def is_ours(hosts: Sequence[str], allowed: Collection[str], *, any_address: bool = False) -> bool:
    """True if a request with these `Host` headers names this machine, by a loopback name or an allowed name.

    With `any_address`, any IP address is accepted too, since it is not resolved by a name server, and a request without
    a `Host` header, which no browser sends.
    """
    if len(hosts) != 1:
        return any_address and not hosts
    name = host_name(hosts[0])
    return name in LOOPBACK or name in allowed or (any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listens(host: str, port: int) -> bool:
    """True if anything accepts connections at this address."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
    except OSError:
        return False
    return True
