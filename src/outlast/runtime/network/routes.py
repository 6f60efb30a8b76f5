"""Find out which of this machine's addresses and interfaces leads to another machine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from outlast.errors import OutlastError, UsageError, message_of

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # nothing is sent there


def resolve(host: str) -> str:
    """Return the numeric address of `host`. If there are several, the first of IPv4 is taken.

    Raises OutlastError if the name is not known.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OutlastError(
            f"--rdzv-endpoint: the name {host} is not known here: {message_of(error)}",
            hint="give an address, or a name that all nodes can look up",
        ) from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])


def is_loopback(address: str) -> bool:
    """Return whether no other machine can reach `address`."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_ours(address: str) -> bool:
    """Return whether `address` belongs to this machine."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def own_address(towards: str) -> str:
    """Return this machine's address on the route to `towards`.

    Raises OutlastError without a route.
    """
    with socket.socket(_family(towards), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, _ANY_PORT))
        except OSError as error:
            raise OutlastError(
                f"this node has no route to {towards}: {error.strerror}",
                hint="see `ip route`, or name another address with --rdzv-endpoint",
            ) from None
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Return the name of the network interface that has `address`. Raises UsageError."""
    for _, name in socket.if_nameindex():
        if address in (_ipv4_of(name), *_ipv6_of(name)):
            return name
    if is_loopback(address):
        return "lo"
    raise UsageError(
        f"no network interface of this node has the address {address}",
        hint="give one of `ip address` with --local-addr",
    )


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _ipv4_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return ""  # the interface has no address
    return socket.inet_ntoa(answer[20:24])


def _ipv6_of(interface: str) -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[-1] == interface]
