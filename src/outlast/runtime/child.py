"""`ChildSpec`: the specification of a child process, from the launcher.

It is sent as JSON, through the zygote or to a spawned process.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from typing import Any

from outlast.errors import CorruptError
from outlast.model.texts import cut_at_word

KINDS = ("rank", "hot", "warm", "store")
ENTRIES = ("script", "module", "program")


@dataclass(frozen=True)
class ChildSpec:
    """The description of one process that is to be started.

    kind     "rank", "hot", "warm", "store"
    rank     -1 for a spare and for the store host
    env      the whole environment, not an addition to one
    entry    what `script` is: the path of a "script", the name of a "module" (-m), a "program" to
             execute (--no-python)
    options  for the session; JSON values only
    """

    worker: int
    kind: str
    rank: int
    world_size: int
    local_world_size: int
    generation: int
    env: dict[str, str]
    script: str
    entry: str
    args: tuple[str, ...]
    cwd: str
    run_folder: str
    vault_folder: str
    run_id: str
    attempt: int
    launcher_pid: int
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_TYPES = {
    name: typing.get_origin(hint) or hint for name, hint in typing.get_type_hints(ChildSpec).items()
}


def spec_from_json(value: Any) -> ChildSpec:
    """Read a spec. Raises CorruptError for a missing, extra or wrong field."""
    if not isinstance(value, dict) or set(value) != set(_TYPES):
        raise CorruptError("not a child's specification")
    fields = {
        name: tuple(item) if _TYPES[name] is tuple and isinstance(item, list) else item
        for name, item in value.items()
    }
    for name, item in fields.items():
        if not isinstance(item, _TYPES[name]):
            raise CorruptError(f"a child's {name} cannot be {cut_at_word(json.dumps(item), 80)}")
    if fields["kind"] not in KINDS or fields["entry"] not in ENTRIES:
        raise CorruptError(f"a child cannot be {fields['kind']!r} of entry {fields['entry']!r}")
    return ChildSpec(**fields)  # type: ignore[arg-type]  # each was checked above
