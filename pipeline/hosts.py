"""The names under which a page on this machine answers, and whether anything answers at an address.

A browser lets any page send requests to `127.0.0.1`, and a hostile name server can make any name resolve to it. So a
request must name a host that is ours.
"""

import ipaddress
import socket
from collections.abc import Collection, Sequence

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""The host names that need no setting: no name server answers for them."""


def host_name(host: str) -> str:
    """A `Host` header's name without its port, in lower case: `localhost` of `localhost:3000`."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


def is_ours(hosts: Sequence[str], allowed: Collection[str], *, any_address: bool = False) -> bool:
    """Return true if a request with these `Host` headers names this machine, by loopback or by an allowed name; with
    `any_address` also by any IP address, for which no name server answers either, or by none, as no browser does."""
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
    """Return true if only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listens(host: str, port: int) -> bool:
    """Tell whether anything accepts connections at this address."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
    except OSError:
        return False
    return True
