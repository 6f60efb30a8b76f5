"""The process that hosts the TCPStore.

It outlives the ranks, and the launcher imports no torch. Options: host (default 127.0.0.1), port
(default 0: any free one), ports (the first and the last of those that port 0 may take; default:
all). It says StoreUp and lives until its channel closes. A Ping is answered only after the store
itself has answered. So a Pong means that the store's server is at work. It listens at `host` only:
anyone who can connect there can change every key. On 127.0.0.1 those are the processes of this
machine, including those of other users.
"""

from __future__ import annotations

import socket
import sys

from outlast.model.messages import Ping, Pong, StoreUp
from outlast.runtime.child import ChildSpec
from outlast.runtime.network.channel import BlockingChannel
from outlast.runtime.worker.communication import groups
from outlast.runtime.worker.process.error_text import one_line


def serve(spec: ChildSpec, channel_fd: int) -> int:
    """Host the store until the channel closes. Return the exit code.

    It is 0 after the channel closed, and 1 if the port cannot be used.
    """
    host, port = str(spec.options.get("host", "127.0.0.1")), int(spec.options.get("port", 0))
    ports = spec.options.get("ports")
    channel = BlockingChannel(socket.socket(fileno=channel_fd))
    try:
        # without DNS: a lost answer would stall every rank for 5 s
        store = groups.serve(host, port, (int(ports[0]), int(ports[1])) if ports else None)
    except (RuntimeError, OSError) as error:
        print(f"outlast: no store on {host}:{port}: {one_line(error)}", file=sys.stderr)
        return 1
    channel.send(StoreUp(host=host, port=store.port))
    for message in channel:  # this ends with the launcher
        if isinstance(message, Ping):
            store.add("outlast/ping", 1)
            channel.send(Pong(spec.worker, message.nonce, 0, ""))
    return 0
