"""The files of the engine in which mutants are planted."""

from __future__ import annotations

COORDINATOR = "engine/coordinator"
MACHINE, REGROUP, DECISIONS, PLANS, RUN, ORDERS, STAGES = (
    f"{COORDINATOR}/{name}.py"
    for name in ("machine", "regroup", "decisions", "plans", "run_parts", "orders", "stages")
)
EXITS, REPORTS, INQUIRY, CHANGES, POLICY, TAKEOVER, STOP = (
    f"{COORDINATOR}/{name}.py"
    for name in (
        "process_exit",
        "fault_reports",
        "hang_inquiry",
        "node_changes",
        "policy_actions",
        "takeover",
        "stop",
    )
)
PROGRESS, STORE, SOURCES, CHECKPOINTS, WORDS, SPARES, FAULTS = (
    f"{COORDINATOR}/{name}.py"
    for name in (
        "progress",
        "group_store",
        "restore_sources",
        "checkpoints",
        "script_reports",
        "spares",
        "open_faults",
    )
)
MEMBERS, REMAINS, NODES, INTERRUPTIONS = (
    f"{COORDINATOR}/{name}.py"
    for name in ("members", "remains", "node_membership", "interruptions")
)
SESSION, SESSIONS, LEASE = (
    f"engine/cluster/{name}.py" for name in ("agent_session", "coordinator_sessions", "lease")
)
LINK = "engine/protocol/reliable_link.py"
HOUSED = "engine/cluster/housed_workers.py"
AGENT, WORKER = "engine/agent/agent.py", "engine/protocol/worker.py"
HANG_WATCH, WORKER_WATCH = "engine/agent/hang_watch.py", "engine/agent/worker_watch.py"
RESTORE, HANG, RECOVERY, BUDGET, DURABLE = (
    f"engine/{name}.py" for name in ("restore", "hang", "recovery", "budget", "durable")
)


FLIPPED = (
    RECOVERY,
    RESTORE,
    BUDGET,
    HANG,
    DURABLE,
    MACHINE,
    REGROUP,
    DECISIONS,
    PLANS,
    RUN,
    ORDERS,
    MEMBERS,
    REMAINS,
    WORKER,
    AGENT,
    HANG_WATCH,
    WORKER_WATCH,
    STOP,
    CHECKPOINTS,
    WORDS,
    SPARES,
    FAULTS,
    PROGRESS,
    STORE,
    SOURCES,
    INTERRUPTIONS,
    EXITS,
    REPORTS,
    SESSION,
    HOUSED,
    SESSIONS,
    LEASE,
    LINK,
    CHANGES,
    TAKEOVER,
    NODES,
    INQUIRY,
    f"{COORDINATOR}/stalled_links.py",
    "engine/placement.py",
)
