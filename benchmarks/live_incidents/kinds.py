"""The kinds of live incidents, and what the evidence of each allows a diagnosis to say.

This table is written before anything runs. `SEEN` kinds may be looked at while rules change, and
those of `EARLIER` were held back once: their first look is in results/diagnosis.md, so they count
as seen since. `HELD_BACK` kinds are made beside them and judged once the rules are frozen; that
first look is what is reported. `LATER` kinds were written when those had been seen too, and `LAST`
and `RECENT` ones after those.

classes     the classes that count as right
class_in    the parts of the folder, any of which tells the class; without them UNKNOWN is right
hedged      classes that count as long as the verdict is not sure of them
guilty      how many ranks the fault is put into, from the struck one on; 0 if all fail alike
rank_in     the parts of the folder, any of which shows the guilty rank
is_hang     the job is looked at while it hangs; otherwise it has ended
layout      the only layout in which this can happen, or "" for each
from_outside  the launcher gets a SIGTERM from outside, as a scheduler sends it
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of incident."""

    name: str
    classes: frozenset[str]
    class_in: frozenset[str]
    is_hang: bool = False
    hedged: frozenset[str] = frozenset()
    guilty: int = 1
    rank_in: frozenset[str] = frozenset({"logs"})
    layout: str = ""
    from_outside: bool = False


def _hang(
    name: str,
    *classes: str,
    class_in: str = "stacks",
    rank_in: str = "stacks dumps",
    guilty: int = 1,
    layout: str = "",
) -> Kind:
    """Describe a hang: the ranks print nothing, so logs alone tell neither class nor rank."""
    return Kind(
        name,
        frozenset(classes or {UNKNOWN}),
        frozenset(class_in.split()),
        is_hang=True,
        guilty=guilty,
        rank_in=frozenset(rank_in.split()),
        layout=layout,
    )


def _end(
    name: str,
    *classes: str,
    class_in: str = "logs",
    hedged: str = "",
    guilty: int = 1,
    layout: str = "",
) -> Kind:
    """Describe a failure that ends the job, and that the logs tell."""
    return Kind(
        name,
        frozenset(classes),
        frozenset(class_in.split()),
        hedged=frozenset(hedged.split()),
        guilty=guilty,
        layout=layout,
    )


SEEN = (
    _hang("sleep_data", "user_code"),
    _hang("sleep_backward", "user_code"),
    _hang("lock", "user_code"),
    _hang("stopped", rank_in="dumps"),
    _hang("extra_reduce", "software_bug", "user_code", class_in="dumps"),
    _hang("left_loop", "user_code", "user_data", "software_bug", class_in="dumps"),
    _end("kill9", UNKNOWN),
    _end("oom_killed", "host_memory", class_in="kernel"),
    _end("value_error", "user_code"),
    _end("index_error", "user_code"),
    _end("disk_write", "storage"),
    _end("disk_torch", "storage"),
    _end("exit_zero", UNKNOWN, "user_code", "user_data"),
    _end("segfault", UNKNOWN, "software_bug", "user_code"),
    _end("no_module", "dependency"),
    _end("shapes", "user_code"),
    _end("all_raise", "user_code", guilty=0),
)
EARLIER = (
    _hang("spin", "user_code"),
    _hang("sleep_optimizer", "user_code"),
    _hang("queue", "user_code"),
    _hang("interpreter_lock", "user_code", "software_bug"),
    _hang("store_wait", "user_code", "software_bug"),
    _hang("order", "user_code", "software_bug", class_in="dumps"),
    _hang("file_lock", "user_code", "storage"),
    _hang("socket", "user_code", "dependency", "network"),
    _hang("loader_stuck", "user_code", "storage"),
    _hang("dtype", "user_code", "software_bug", class_in="dumps"),
    _end("loader_killed", UNKNOWN, hedged="host_memory user_code"),
    _end("abort", UNKNOWN, "software_bug", "user_code"),
    _end("exit_three", UNKNOWN, "user_code"),
    _end("key_error", "user_code"),
    _end("bad_json", "user_data", "user_code"),
    _end("no_memory", "host_memory", "user_code"),
    _end("no_file", "user_code", "user_data", "storage"),
    _end("recursion", "user_code"),
    _end("nan", "user_data", "user_code", UNKNOWN, guilty=0),
    _end("time_out", "user_code", UNKNOWN),
)
HELD_BACK = (
    _hang("sleep_forward", "user_code"),
    _hang("child_wait", "user_code"),
    _hang("pipe_read", "user_code"),
    _hang("http_get", "user_code", "dependency", "network", "storage"),
    _hang("fifo_open", "user_code", "storage"),
    _hang("lone_barrier", "user_code", "software_bug", class_in="dumps"),
    _hang("skipped_reduce", "user_code", "software_bug", class_in="dumps"),
    _hang("recv_nobody", "user_code", "software_bug"),
    _hang("join_thread", "user_code"),
    _hang("future", "user_code"),
    _hang("two_locks", "user_code"),
    _hang("lone_checkpoint", "user_code", "software_bug", class_in="dumps"),
    _hang("two_sleep", "user_code", guilty=2),
    _hang("regex", "user_code", "software_bug"),
    _hang("thread_died", "user_code", "user_data", rank_in="logs stacks dumps"),
    _end("monitored", UNKNOWN, "user_code"),
    _end("ended_by_term", UNKNOWN, hedged="host_maintenance user_code"),
    _end("assert_fail", "user_code", "user_data"),
    _end("bad_bytes", "user_data", "user_code"),
    _end("torn_checkpoint", "storage", "user_data", "user_code"),
    _end("no_name", "dependency", "user_code"),
    _end("no_library", "dependency", "user_code"),
    _end("no_rights", "storage", "user_code"),
    _end("many_files", "user_code", "host_memory", "storage"),
    _end("port_taken", "user_code", "software_bug", "dependency"),
    _end("loader_raises", "user_code", "user_data"),
    _end("loader_oom", "host_memory", class_in="kernel", hedged="host_memory user_code"),
    _end("uneven_batch", "user_code", "user_data", guilty=0),
    _end("no_cuda", "dependency", "user_code", guilty=0),
    _end("bus_error", UNKNOWN, "software_bug", "user_code", hedged="storage host_memory"),
    _end("exit_message", UNKNOWN, "user_code"),
    _end("inplace", "user_code"),
    _end("unused_weights", "user_code", "software_bug", guilty=0, layout="ddp"),
    _end("nan_one", "user_data", "user_code", UNKNOWN),
    Kind(
        "launcher_ended",
        frozenset({UNKNOWN, "host_maintenance"}),
        frozenset({"logs"}),
        guilty=0,
        from_outside=True,
    ),
)
LATER = (
    _hang("semaphore", "user_code"),
    _hang("event_loop", "user_code"),
    _hang("gzip_read", "user_code", "storage"),
    _hang("locked_index", "user_code", "storage", "software_bug"),
    _hang("full_pipe", "user_code", "storage"),
    _hang("client_recv", "user_code", "dependency", "network", "storage"),
    _hang("lone_gather", "user_code", "software_bug", class_in="dumps"),
    _hang("lone_broadcast", "user_code", "software_bug", class_in="dumps"),
    _hang("lone_group", "user_code", "software_bug"),
    _hang("send_nobody", "user_code", "software_bug"),
    _hang("two_stopped", rank_in="dumps", guilty=2),
    _hang("polls_file", "user_code"),
    _end("other_weights", "user_code"),
    _end("no_gradient", "user_code"),
    _end("quota", "storage"),
    _end("read_only", "storage"),
    _end("leaves", UNKNOWN, "user_code"),
    _end("user_signal", UNKNOWN, "user_code"),
    _end("torn_json", "user_data", "user_code"),
    _end("no_more", "user_data", "user_code"),
    _end("left_breakpoint", "user_code"),
    _end("refused", "dependency", "network", "user_code", UNKNOWN),
    _end("wrong_width", "user_code", "user_data"),
    _end("interrupted", UNKNOWN, "user_code", "host_maintenance"),
)
LAST = (
    _hang("condition_wait", "user_code"),
    _hang("process_join", "user_code"),
    _hang("select_wait", "user_code", "dependency", "network"),
    _hang("worker_queue", "user_code"),
    _hang("lone_scatter", "user_code", "software_bug", class_in="dumps"),
    _hang("long_sum", "user_code"),
    _end("type_error", "user_code"),
    _end("no_division", "user_code"),
    _end("disk_error", "storage", "ssd"),
    _end("stale_handle", "storage"),
    _end("no_answer", "dependency", "network", "user_code", UNKNOWN),
    _end("child_failed", "user_code", "dependency", UNKNOWN),
    _end("bad_pickle", "user_data", "user_code"),
    _end("no_optimizer", "dependency", "user_code"),
)
RECENT = (
    _hang("loader_deadlock", "user_code"),
    _hang("loader_stopped", UNKNOWN, "user_code"),
    _hang("import_wait", "user_code", "dependency"),
    _hang("logging_lock", "user_code"),
    _hang("thread_barrier", "user_code"),
    _hang("dead_pool", "user_code"),
    _hang("swallowed", "user_code", "user_data", "software_bug", class_in="dumps"),
    _hang("skipped_branch", "user_code", "software_bug", class_in="dumps"),
    _hang("object_counts", "user_code", "software_bug", class_in="dumps", rank_in="dumps"),
    _hang("wrong_group", "user_code", "software_bug", class_in="dumps", layout="mesh"),
    _hang("lone_full", "user_code", "software_bug", class_in="dumps", layout="fsdp2"),
    _end("loader_segfault", UNKNOWN, "user_code", "software_bug", "dependency"),
    _end("loader_full", "storage", "host_memory"),
    _end("watchdog_text", UNKNOWN, "user_code"),
    _end("store_cut", UNKNOWN, "network", "user_code"),
    _end("cut_sockets", UNKNOWN, "network", guilty=0),
    _end("cgroup_oom", "host_memory", class_in="kernel"),
    _end("wrong_list", "user_code", "software_bug"),
    _end("float_signal", UNKNOWN, "software_bug", "user_code"),
    _end("no_host", "network", "dependency", "user_code", UNKNOWN),
    _end("overloaded", "dependency", "network", "storage", "user_code", UNKNOWN),
    _end("no_secret", "user_code", "dependency"),
    _end("unpickled", "user_code", "dependency"),
)
KINDS = {kind.name: kind for kind in (*SEEN, *EARLIER, *HELD_BACK, *LATER, *LAST, *RECENT)}
SETS = {
    "seen": (*SEEN, *EARLIER),
    "held-back": HELD_BACK,
    "later": LATER,
    "last": LAST,
    "recent": RECENT,
}
SETS["all"] = tuple(kind for kinds in SETS.values() for kind in kinds)
