"""Listening TCP sockets that are bound to one address of this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket

from outlast.errors import OutlastError, UsageError, message_of
from outlast.model.limits import CONNECT_TRY_S

ListeningSocket = socket.socket


def listen_at(host: str, port: int, *, backlog: int = socket.SOMAXCONN) -> socket.socket:
    """Return a socket that listens at `host` and nowhere else; port 0 takes any free one.

    `host` is an address or a name. If a name has several addresses, the first of IPv4 is taken, or
    if there is none, the first. Raises OSError or OverflowError if the address or the port cannot
    be used.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    family, kind, protocol, _, (address, _, *rest) = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of an earlier listener may linger for minutes after its end.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port, *rest))
        listener.listen(backlog)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def listen_in(host: str, ports: tuple[int, int] | None) -> socket.socket:
    """Listen as `listen_at` does, at the first free port of a range; None: at any free port.

    `ports` is the first and the last port of --port-range. Raises OSError if none of them is free.
    """
    if ports is None:
        return listen_at(host, 0)
    first, last = ports
    for port in range(first, last + 1):
        try:
            return listen_at(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    taken = f"--port-range {first}-{last}: all of these ports are in use at {host}"
    raise OSError(errno.EADDRINUSE, taken)


def listen_unless_taken(host: str, port: int) -> ListeningSocket | None:
    """Listen there as `listen_at` does. Return None if another process listens there already.

    Raises UsageError if the kernel does not let this process listen there.
    """
    try:
        return listen_at(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise UsageError(
            f"--rdzv-endpoint {host}:{port}: this node cannot listen there: {error.strerror}",
            hint="give another port on all nodes; ports below 1024 are for root",
        ) from None


def _unreached(listener: socket.socket) -> str:
    """Return why no process can connect to it.

    Listening works even while the loopback interface is down.
    """
    with socket.socket(listener.family, listener.type) as caller:
        caller.settimeout(CONNECT_TRY_S)
        try:
            caller.connect(listener.getsockname())
        except OSError as error:
            return message_of(error)
    return ""


def meeting_address(host: str, port: int) -> str:
    """Return the numeric address of `host`, at which a run's workers can meet on `port`.

    Raises OutlastError if no process can connect to it, and UsageError if this machine cannot
    listen there. A wildcard is a UsageError too. It would let every network reach the run's store,
    and anyone who reaches the store can change it.
    """
    hint = "leave --master-addr and --master-port out, or give an address of this machine"
    try:
        with listen_at(host.strip("[]"), port) as listener:
            address = str(listener.getsockname()[0])
            unreached = _unreached(listener)
    except (OSError, OverflowError) as error:
        why = f"workers cannot meet at {host} port {port}: {message_of(error)}"
        raise UsageError(why, hint=hint) from None
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        raise UsageError(f"--master-addr {host}: every network could reach the run", hint=hint)
    if unreached:
        raise OutlastError(
            f"nobody on this machine can connect to {address}: {unreached}",
            hint="see that the loopback interface is up: `ip link show lo`",
        )
    return address
