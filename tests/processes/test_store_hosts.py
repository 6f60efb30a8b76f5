"""What is reported about a store host that cannot be started, and when further tries are
hopeless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from outlast.model import limits
from outlast.model.messages import StoreUp
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.store_hosts import StoreHosts, StoreNews


@dataclass
class Around:
    """The loop, the process host and the specs of a StoreHosts. The loss of a host is reported at
    once; other delayed calls never come.
    """

    told: list[str] = field(default_factory=list)
    said: list[object] = field(default_factory=list)
    hopeless: list[str] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    words: str = "ImportError: libtorch"
    port_is_fixed: bool = False

    def __post_init__(self) -> None:
        self.keeper = self
        news = StoreNews(self.said.append, self.told.append, self.hopeless.append)
        me = cast("Any", self)
        self.hosts = StoreHosts(me, me, me, news)

    def call_at(self, due_s: float, call: Callable[[], None]) -> None:
        if "_say_lost" in call.__code__.co_names:
            call()

    def start(self, number: int) -> None:
        self.started.append(number)

    def store(self, number: int, *, standby: bool) -> int:
        return number

    def pids(self) -> dict[int, int]:
        return {}

    def forget(self, pid: int) -> None:
        pass

    def store_is_gone(self) -> None:
        pass

    def store_is_up(self, message: StoreUp) -> None:
        pass

    def last_words(self, number: int) -> str:
        return self.words

    def fails(self, times: int) -> None:
        """Order the host this many times. Each time it ends before it listens."""
        for _ in range(times):
            self.hosts.order(plain=True)
            self.hosts.on_exit(Exited(self.started[-1], 7, 1, None, OomKill.NONE, 0.0, False))


def test_a_host_that_ends_before_it_listens_is_reported_once() -> None:
    around = Around()
    around.fails(limits.FIRST_STARTS_COUNT - 1)
    assert len(around.told) == 1, around.told
    assert "ImportError: libtorch" in around.told[0]
    assert "tried again in 0.25 s" in around.told[0]
    assert len(around.said) == limits.FIRST_STARTS_COUNT - 1, "another one is ordered each time"
    assert not around.hopeless


def test_a_store_that_never_listened_is_hopeless_after_some_tries() -> None:
    around = Around()
    around.fails(limits.FIRST_STARTS_COUNT)
    assert len(around.hopeless) == 1
    assert "4 times so far: it ended with exit code 1: ImportErr" in around.hopeless[0]


def test_a_store_that_the_kernel_killed_for_memory_is_reported_as_such() -> None:
    around = Around()
    around.hosts.order(plain=True)
    around.hosts.on_exit(Exited(around.started[-1], 7, None, 9, OomKill.OURS, 0.0, False))
    assert "signal 9 (SIGKILL), while the kernel counted an OOM kill" in str(around.said)


def test_a_store_that_has_listened_once_is_tried_again_without_end() -> None:
    around = Around()
    around.hosts.order(plain=True)
    around.hosts.on_message(around.started[-1], StoreUp("127.0.0.1", 1, 1))
    around.hosts.on_exit(Exited(around.started[-1], 7, None, 9, OomKill.NONE, 0.0, False))
    assert "libtorch" not in str(around.said), "what it wrote while it listened is no reason"
    around.fails(3 * limits.FIRST_STARTS_COUNT)
    assert not around.hopeless
