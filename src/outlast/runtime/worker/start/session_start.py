"""Start the session of a worker, and what a check or a drill has asked of it."""

from __future__ import annotations

import socket

from outlast.runtime.child import ChildSpec
from outlast.runtime.worker.instructions import run_ends_folder, trial_plan
from outlast.runtime.worker.member.session import WorkerSession, make_current
from outlast.runtime.worker.process import rank_variables


def start(spec: ChildSpec, sock: socket.socket) -> WorkerSession:
    """Start this process's session. Bootstrap calls it in every worker, before the script."""
    session = WorkerSession(spec, sock)
    make_current(session)
    session.onlooker.begin()
    if spec.kind == "hot":
        rank_variables.ask_in_front_of(session.wait_for_rank)
    if (plan := trial_plan.asked()) is not None:
        # it imports torch, which a script without torch must not pay for
        from outlast.runtime.worker.trials import trial

        trial.begin(plan, worker=spec.worker, run_folder=spec.run_folder, vault=spec.vault_folder)
    if run_ends_folder.asked():
        from outlast.runtime.worker.trials import run_ends

        run_ends.begin(spec.worker)
    session.listen()
    return session
