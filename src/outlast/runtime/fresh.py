"""A value that many threads ask for. It is computed so seldom that it costs little.

    page = Fresh(compute=lambda: look(path), changed=lambda: stamp(path), least_s=1.0)
    page.get()      computed now, or up to `least_s` old

One thread computes at a time, and those that ask meanwhile wait for its result. A value is kept for
SHARE times the processor time that it took. So computing takes a small share of one core, however
many ask. Time by the clock would not do: on a busy machine a process at nice 19 may wait for a core
for minutes, and its value would be kept SHARE times as long. While nothing changes, the value is
kept for `longest_s`, and a settled value until something changes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outlast.runtime import clock

Value = TypeVar("Value")
SHARE = 10.0


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Value]):
    """A computed value, or an error.

    lasts_s  how old it may get while `stamp` is the same
    took_s   how many seconds of processor time it took to compute
    """

    stamp: object
    lasts_s: float
    took_s: float
    value: Value | None = None
    error: Exception | None = None


class Fresh(Generic[Value]):
    """A value that is computed when it is asked for, and not too often.

    compute  computes the value; if it raises an error, all who ask get the error
    changed  returns something that differs once the value may have changed

    settled  returns True for a value that time alone does not change, as for a run that has ended

    least_s, longest_s  how old a value may be in any case, and at most while nothing changes
    now_s, spent_s      the time by the clock, and the processor time of this thread
    """

    def __init__(
        self,
        compute: Callable[[], Value],
        changed: Callable[[], object],
        *,
        least_s: float,
        longest_s: float = math.inf,
        settled: Callable[[Value], bool] = lambda value: False,
        now_s: Callable[[], float] = clock.now_s,
        spent_s: Callable[[], float] = clock.thread_s,
    ) -> None:
        self._compute = compute
        self._changed = changed
        self._least_s = least_s
        self._longest_s = longest_s
        self._settled = settled
        self._now_s = now_s
        self._spent_s = spent_s
        self._lock = threading.Lock()
        self._kept: _Kept[Value] | None = None
        self._made_s = -math.inf

    def get(self) -> Value:
        """Return the value. Raises what `compute` raised."""
        with self._lock:
            age_s = self._now_s() - self._made_s
            if self._kept is None or age_s >= max(self._least_s, SHARE * self._kept.took_s):
                self._renew(age_s)
            kept = self._kept
            assert kept is not None
        if kept.error is not None:
            raise kept.error
        return kept.value  # type: ignore[return-value]  # it is a value where there is no error

    def _renew(self, age_s: float) -> None:
        stamp, kept = self._changed(), self._kept
        if kept is not None and kept.stamp == stamp and age_s < kept.lasts_s:
            return
        begun_s = self._spent_s()
        try:
            value = self._compute()
            lasts_s = math.inf if self._settled(value) else self._longest_s
            self._kept = _Kept(stamp, lasts_s, self._spent_s() - begun_s, value=value)
        except Exception as error:  # boundary: each caller gets the error
            took_s = self._spent_s() - begun_s
            self._kept = _Kept(stamp, self._longest_s, took_s, error=error)
        self._made_s = self._now_s()
