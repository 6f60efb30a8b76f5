"""A module that tests preload into the zygote: its session has only a socket, in place of the real
session.
"""

from __future__ import annotations

import os
import socket
import sys
import types
from dataclasses import replace

from outlast.model.messages import Hello, Warned
from outlast.runtime.child import ChildSpec
from outlast.runtime.network.channel import BlockingChannel


class FakeSession:
    def __init__(self, spec: ChildSpec, sock: socket.socket) -> None:
        self.spec = spec
        self.channel = BlockingChannel(sock)
        self.channel.send(Hello(spec.worker, os.getpid()))

    def wait_for_rank(self) -> ChildSpec:
        next(iter(self.channel))
        return replace(
            self.spec, kind="rank", rank=0, env={**self.spec.env, "RANK": "0", "LOCAL_RANK": "0"}
        )

    def exits(self, exit_code: int, message: str) -> None:
        pass

    def user_failed(self, error: BaseException) -> None:
        self.channel.send(Warned(self.spec.worker, f"failed: {type(error).__name__}"))

    def finish(self, exit_code: int) -> None:
        self.channel.send(Warned(self.spec.worker, f"finish: {exit_code}"))


module = types.ModuleType("outlast.runtime.worker.start.session_start")
module.start = FakeSession  # type: ignore[attr-defined]
sys.modules[module.__name__] = module
