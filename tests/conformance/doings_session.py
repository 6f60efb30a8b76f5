"""Preloaded into the zygote by tests: a session whose listener answers pings, and a script that
does what its argument lists.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import types

from outlast.model.messages import Ping, Pong, Warned
from outlast.runtime.child import ChildSpec
from outlast.runtime.network.channel import BlockingChannel


class Session:
    """`current` is this process's."""

    current: Session

    def __init__(self, spec: ChildSpec, sock: socket.socket) -> None:
        self.worker = spec.worker
        self.channel = BlockingChannel(sock)
        Session.current = self
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for message in self.channel:
            if isinstance(message, Ping):
                self.channel.send(Pong(self.worker, message.nonce, 0, "script.py:1"))

    def exits(self, exit_code: int, message: str) -> None:
        pass

    def user_failed(self, error: BaseException) -> None:
        """The host hears of it by the exit code."""

    def finish(self, exit_code: int) -> None:
        """Nothing is left to say."""


def do_all(doings: str) -> None:
    for what, value in json.loads(doings):
        if what == "say":
            Session.current.channel.send(Warned(Session.current.worker, value))
        elif what == "exit":
            sys.exit(value)
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            assert what == "sleep", what
            time.sleep(value)


module = types.ModuleType("outlast.runtime.worker.start.session_start")
module.start = Session  # type: ignore[attr-defined]
sys.modules[module.__name__] = module
