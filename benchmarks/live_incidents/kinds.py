"""The kinds of live incidents, and what the evidence of each allows a diagnosis to say.

This table is written before anything runs. `DEVELOPMENT` kinds may be looked at while rules change;
`HELD_BACK` kinds are made and judged once the rules are frozen, and that first look is reported.

classes     the classes that count as right; UNKNOWN where nothing in the folder tells why
hedged      classes that count as long as the verdict is not sure of them
victims     whether the guilty rank is the one that the fault was put into (else nobody is)
in_logs     whether the logs alone tell the class; otherwise UNKNOWN counts as right there too
rank_in     the parts of the folder, any of which shows the guilty rank
is_hang     the job is looked at while it hangs; otherwise it has ended
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of incident."""

    name: str
    classes: frozenset[str]
    is_hang: bool = False
    hedged: frozenset[str] = frozenset()
    victims: bool = True
    in_logs: bool = True
    rank_in: frozenset[str] = frozenset({"logs"})


def _hang(name: str, *classes: str, rank_in: str = "stacks dumps") -> Kind:
    return Kind(
        name,
        frozenset({*classes, UNKNOWN}),
        is_hang=True,
        in_logs=False,
        rank_in=frozenset(rank_in.split()),
    )


def _end(name: str, *classes: str, hedged: str = "", victims: bool = True) -> Kind:
    return Kind(name, frozenset(classes), hedged=frozenset(hedged.split()), victims=victims)


DEVELOPMENT = (
    _hang("sleep_data", "user_code"),
    _hang("sleep_backward", "user_code"),
    _hang("lock", "user_code"),
    _hang("stopped", rank_in="dumps"),
    _hang("extra_reduce", "software_bug", "user_code"),
    _hang("left_loop", "user_code", "user_data", "software_bug"),
    _end("kill9", UNKNOWN),
    _end("oom_killed", "host_memory", UNKNOWN),
    _end("value_error", "user_code"),
    _end("index_error", "user_code"),
    _end("disk_write", "storage"),
    _end("disk_torch", "storage"),
    _end("exit_zero", UNKNOWN, "user_code", "user_data"),
    _end("segfault", UNKNOWN, "software_bug", "user_code"),
    _end("no_module", "dependency"),
    _end("shapes", "user_code"),
    _end("all_raise", "user_code", victims=False),
)
HELD_BACK = (
    _hang("spin", "user_code"),
    _hang("sleep_optimizer", "user_code"),
    _hang("queue", "user_code"),
    _hang("interpreter_lock", "user_code", "software_bug"),
    _hang("store_wait", "user_code", "software_bug"),
    _hang("order", "user_code", "software_bug"),
    _hang("file_lock", "user_code", "storage"),
    _hang("socket", "user_code", "dependency", "network"),
    _hang("loader_stuck", "user_code", "storage"),
    _hang("dtype", "user_code", "software_bug"),
    _end("loader_killed", UNKNOWN, hedged="host_memory user_code"),
    _end("abort", UNKNOWN, "software_bug", "user_code"),
    _end("exit_three", UNKNOWN, "user_code"),
    _end("key_error", "user_code"),
    _end("bad_json", "user_data", "user_code"),
    _end("no_memory", "host_memory", "user_code"),
    _end("no_file", "user_code", "user_data", "storage"),
    _end("recursion", "user_code"),
    _end("nan", "user_data", "user_code", UNKNOWN, victims=False),
    _end("time_out", "user_code", UNKNOWN),
)
KINDS = {kind.name: kind for kind in (*DEVELOPMENT, *HELD_BACK)}
