"""Let all ranks start over, because a replaced rank has reached a collective before run.steps.

A process that replaces a rank in place is alone until run.steps. So a rank is replaced in place
only if the script made no collective before that. But a script may make one at some starts only:
for example, it calls `dcp.load` once it has a checkpoint of its own. Then this process cannot go
on, and no other that replaces the rank can. So all ranks begin the script again, by entering main's
function again or, without one, by a restart. Either way they go on from the step that the survivors
hold.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from outlast.errors import Reenter
from outlast.runtime import clock
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.script.hooks import user_line


class Replacement(Protocol):
    """The part of a process's membership that is used here.

    reenters   the script gave its training to outlast.main
    """

    @property
    def session(self) -> WorkerSession | None: ...

    @property
    def reenters(self) -> bool: ...

    def stand_still(self, *, in_hook: bool) -> object: ...


def call(member: Replacement) -> NoReturn:
    """Make all ranks start over, because this process has no group to communicate in.

    It raises Reenter in a function that was given to outlast.main. Otherwise it does not return:
    the process is killed with all others.
    """
    assert member.session is not None
    session, line = member.session, user_line()
    again = "enter main's function again" if member.reenters else "restart"
    session.warn(
        f"{line}: the script communicates before run.steps at this start, and did not when the"
        f" other ranks started: all ranks {again}. torch.distributed.barrier() in front of"
        " run.steps at every start lets outlast know of it beforehand"
    )
    while True:
        now_s = clock.now_s()
        session.do(
            lambda machine, at_s=now_s: machine.broke(  # type: ignore[misc]
                mechanism="alone",
                error=f"{line} needs all ranks before run.steps",
                traceback="",
                now_s=at_s,
            )
        )
        member.stand_still(in_hook=False)
        if member.reenters:
            raise Reenter
        # This plan was made before the coordinator received the report, so report it again.
