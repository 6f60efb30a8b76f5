"""The decisions of a run, as state machines without input or output.

Nothing here reads a clock, a file or a socket. A driver passes in messages, timers and times, and
carries out the outputs that each call returns. There are two drivers: runtime/ for a real run, and
the simulated world in sim/. So the simulator runs the same code as a real run.

    coordinator/   leads the run: who its members are, how it recovers, and when it ends
    agent/         watches the workers of one node, and finds those that hang
    commit/        a step as a transaction on one rank: prepare, vote, apply, commit
    protocol/      outputs, the link between agent and coordinator, and a worker's part
    cluster/       several nodes: sessions, leases, and voters for a new coordinator

The modules beside these folders are pure: decisions, each of which returns its reason, and the
arithmetic that they need. To follow a recovery from its first sign to training, begin with
coordinator/regroup.py.
"""
