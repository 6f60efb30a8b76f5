"""A process that replaces a rank in place comes to a collective in front of run.steps.

Such a process is alone until run.steps. A rank is replaced in place only if the script made no
collective before that. But a script may make one at some starts only. It loads a checkpoint by
`dcp.load`, for example, once it has one of its own. Then this process cannot go on, and nor can any
other that replaces the rank. So all ranks begin the script again: by entering main's function
again, or, where there is none, by a restart. Either way they go on from the step that the survivors
hold.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from outlast.errors import Reenter
from outlast.runtime import clock
from outlast.runtime.worker.hooks import user_line
from outlast.runtime.worker.session import WorkerSession


class Replacement(Protocol):
    """The membership of such a process, as far as it matters here.

    reenters   the script gave its training to outlast.main
    """

    @property
    def session(self) -> WorkerSession | None: ...

    @property
    def reenters(self) -> bool: ...

    def stand_still(self, *, in_hook: bool) -> object: ...


def call(member: Replacement) -> NoReturn:
    """Ask that all ranks come here with this process, which has no group to communicate in.

    Raises Reenter in a function that was given to outlast.main. Elsewhere it does not return: the
    process is killed with all others.
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
        # The plan that has come was made before this was heard of, so it is said once more.
