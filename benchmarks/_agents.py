"""Thousands of agents in one process, for `channel.py`.

Each speaks the protocol over its own connection, and does at once what agents and workers do.
Commands come on standard input, a word a line; news go to standard output, a JSON object a line.
Times are of CLOCK_MONOTONIC, which both processes share. One core stands for thousands of nodes
here, so this process does as little as it can.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time
from dataclasses import replace
from typing import Any

from outlast.model.messages import (
    Beat,
    Committed,
    Donated,
    Enrol,
    FromNode,
    FromWorkers,
    Hello,
    Inventory,
    Joined,
    Message,
    Progress,
    Registered,
    Regroup,
    StoreUp,
    Underway,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.wire import encode

READ_BYTES = 1 << 18
# agents that dial at the same time: the kernel's queue of connections has no room for all
DIALLING = 1_000


def say(**news: Any) -> None:
    """Print news."""
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()


def _same(workers: list[int], message: Any) -> Message:
    """Return a message of several workers, as an agent's session batches it."""
    return message if len(workers) == 1 else FromWorkers(tuple(workers), replace(message, worker=0))


class Agent:
    """One node. `ranks`: the rank of each living worker, by the worker's number."""

    def __init__(self, swarm: Swarm, name: str, address: tuple[str, int]) -> None:
        self.swarm = swarm
        self.name = name
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.connected = False
        self.welcome = False
        self.beats = 0
        self.number = 0
        self.heard = 0
        self.step = 0
        self.ranks: dict[int, int] = {}
        self.planned = (0, 0)
        self.unsent = b""
        self.buffer = b""

    # --- the socket -------------------------------------------------------------------------------

    def dial(self) -> None:
        self.sock.connect_ex(self.address)
        self.swarm.epoll.register(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def writable(self) -> None:
        if not self.connected:
            self.connected = True
            self.swarm.epoll.modify(self.sock.fileno(), select.EPOLLIN)
            self.send(
                encode(
                    Enrol(
                        self.name,
                        1,
                        self.swarm.ranks,
                        0,
                        0,
                        0,
                        None,
                        (),
                        (),
                        (),
                        "",
                        time.monotonic(),
                    )
                )
            )
        elif self.unsent:
            frames, self.unsent = self.unsent, b""
            self.swarm.epoll.modify(self.sock.fileno(), select.EPOLLIN)
            self.send(frames)

    def send(self, frames: bytes) -> None:
        if self.unsent:
            self.unsent += frames
            return
        try:
            sent = self.sock.send(frames)
        except BlockingIOError:
            sent = 0
        self.swarm.sent_bytes += sent
        if sent < len(frames):
            self.unsent = frames[sent:]
            self.swarm.epoll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def readable(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise SystemExit(f"the coordinator closed the connection of {self.name}")
        self.swarm.received_bytes += len(data)
        data = self.buffer + data
        at, answers = 0, []
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            self.obey(json.loads(data[at + 4 : end]), answers)
            at = end
        self.buffer = data[at:]
        if answers:
            self.news(answers)

    # --- the protocol -----------------------------------------------------------------------------

    def news(self, messages: list[Message]) -> None:
        """Send the messages in one write, as a busy channel does."""
        frames, now_s = [], time.monotonic()
        for message in messages:
            self.number += 1
            frame = FromNode(self.number, self.heard, now_s, message)  # type: ignore[arg-type]
            frames.append(encode(frame))
        self.send(b"".join(frames))

    def beat(self) -> None:
        self.beats += 1
        self.send(encode(Beat(self.beats, self.heard, time.monotonic())))
        if self.swarm.progress:
            self.news([self.progress()])

    def progress(self) -> Progress:
        return Progress(self.step, self.step, self.swarm.step_s, time.monotonic())

    def obey(self, message: list[Any], answers: list[Message]) -> None:
        kind = message[0]
        if kind == "Grant":
            self.swarm.grants += 1
        elif kind == "Welcome":
            self.welcome = True
            self.beat()
            self.swarm.enrolled += 1
            if self.swarm.enrolled == len(self.swarm.agents):
                say(event="enrolled", at_s=time.monotonic())
        else:
            assert kind == "ToNode", kind
            _, number, _, _, order = message
            assert number == self.heard + 1, "an order was lost, or came twice"
            self.heard = number
            self.order(order, answers)

    def order(self, order: list[Any], answers: list[Message]) -> None:
        """Answer an order, which is given as it was on the wire (model/wire.py)."""
        kind = order[0]
        if kind == "StartWorker":
            _, worker, rank, _, _ = order
            self.ranks[worker] = rank
            answers += [WorkerStarted(worker, 1, self.name, time.monotonic()), Hello(worker, 1)]
        elif kind == "StartStore":
            _, _, number = order
            answers.append(StoreUp("127.0.0.1", 1, number))
        elif kind == "ToWorkers" and order[3][0] == "Leave":
            _, workers, _, (_, generation, _) = order
            self.swarm.leaves.append(time.monotonic())
            answers.append(
                _same(
                    workers,
                    Inventory(
                        workers[0],
                        generation,
                        self.step,
                        self.step,
                        self.step,
                        False,
                        (),
                        begun=True,
                    ),
                )
            )
        elif kind == "ToWorkers" and order[3][0] == "Regroup":
            _, workers, _, plan = order
            self.regroup(workers, Regroup(*plan[1:]), answers)
        else:
            say(event="unexpected", order=order)

    def regroup(self, workers: list[int], plan: Regroup, answers: list[Message]) -> None:
        """Answer a plan. Ranks join later, once all have theirs: they build the group together."""
        generation, step, swarm = plan.generation, plan.step, self.swarm
        if plan.then == "start":
            answers.append(
                _same(
                    workers, Registered(workers[0], generation, step, "in_place", False, True, "")
                )
            )
        if plan.donate:
            answers.append(Donated(workers[0], generation, step))
        answers.append(_same(workers, Underway(workers[0], generation, 2)))
        self.planned = (generation, step)
        swarm.has_plans(len(workers))

    def join(self) -> None:
        """Say that all workers have joined the group, and have done a step in it."""
        generation, step = self.planned
        self.step, now_s = step + 1, time.monotonic()
        workers = list(self.ranks)
        first = workers[0]
        said = (
            Underway(first, generation, 3),
            Joined(first, generation, step, 0.01, 0.0),
            Committed(first, generation, step + 1, now_s),
        )
        self.news([*(_same(workers, one) for one in said), self.progress()])

    def lose_one(self) -> None:
        """Say that one of the workers was killed."""
        worker = next(iter(self.ranks))
        rank = self.ranks.pop(worker)
        now_s = time.monotonic()
        say(event="struck", at_s=now_s, rank=rank)
        self.news(
            [
                WorkerExited(
                    worker,
                    1,
                    None,
                    9,
                    False,
                    self.step,
                    (self.step,),
                    (self.step,),
                    "body",
                    now_s,
                    now_s,
                    "",
                )
            ]
        )


class Swarm:
    """Hold all agents, and the loop that serves their connections."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.ranks: int = args.ranks_per_peer
        self.step_s: float = args.step_s
        self.beat_s: float = args.beat_s
        self.epoll = select.epoll()
        self.enrolled = self.grants = 0
        self.sent_bytes = self.received_bytes = 0
        self.progress = False
        self.joining = False
        self.leaves: list[float] = []
        self.plans: list[float] = []  # when they came
        self.planned = 0  # ranks that have theirs
        self.at_strike = (0, 0, 0.0)
        self.struck = 0
        self.agents = [
            Agent(self, f"node-{number:05}", (args.host, args.port)) for number in range(args.peers)
        ]
        self.by_fd = {agent.sock.fileno(): agent for agent in self.agents}
        self.dialled = 0
        self.epoll.register(0, select.EPOLLIN)
        self.begin_s = time.monotonic()
        self.beaten = 0

    def run(self) -> None:
        """Serve until standard input ends: the process that started this one is done, or gone."""
        while True:
            while self.dialled < min(len(self.agents), self.enrolled + DIALLING):
                self.agents[self.dialled].dial()
                self.dialled += 1
            for fd, mask in self.epoll.poll(max(0.0, self.next_s() - time.monotonic()), 512):
                if fd == 0:
                    if not self.commanded():
                        return
                    continue
                agent = self.by_fd[fd]
                if mask & select.EPOLLOUT:
                    agent.writable()
                if mask & ~select.EPOLLOUT:
                    agent.readable()
            if self.joining:
                self.joining = False
                for agent in self.agents:
                    agent.join()
            while self.next_s() <= time.monotonic():
                agent = self.agents[self.beaten % len(self.agents)]
                self.beaten += 1
                if agent.welcome:
                    agent.beat()

    def next_s(self) -> float:
        """Return when the next agent beats: they do so one after the other, evenly spread."""
        return self.begin_s + (self.beaten + 1) * self.beat_s / len(self.agents)

    def commanded(self) -> bool:
        words = os.read(0, 4096).decode().split()
        for word in words:
            if word == "count":
                self.counted("count")
            elif word == "progress":
                self.progress = not self.progress
            elif word == "strike":
                self.leaves, self.plans, self.planned = [], [], 0
                self.at_strike = (self.sent_bytes, self.received_bytes, _cpu_s())
                self.agents[(self.struck * 7 + len(self.agents) // 2) % len(self.agents)].lose_one()
                self.struck += 1
        return bool(words)

    def counted(self, event: str, **more: Any) -> None:
        say(
            event=event,
            at_s=time.monotonic(),
            sent=self.sent_bytes,
            received=self.received_bytes,
            grants=self.grants,
            beats=self.beaten,
            cpu_s=_cpu_s(),
            **more,
        )

    def has_plans(self, ranks: int) -> None:
        """Note that more ranks have their plans. Once all have, they join."""
        self.plans.append(time.monotonic())
        self.planned += ranks
        if self.planned < len(self.agents) * self.ranks:
            return
        sent, received, cpu_s = self.at_strike
        say(
            event="planned",
            leaves=[min(self.leaves, default=0.0), max(self.leaves, default=0.0)],
            plans=[min(self.plans), max(self.plans)],
            sent=self.sent_bytes - sent,
            received=self.received_bytes - received,
            cpu_s=_cpu_s() - cpu_s,
        )
        self.plans, self.planned = [], 0
        self.joining = True


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--ranks-per-peer", type=int, required=True)
    parser.add_argument("--beat-s", type=float, required=True)
    parser.add_argument(
        "--step-s", type=float, required=True, help="what the agents say that a step takes"
    )
    Swarm(parser.parse_args()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
