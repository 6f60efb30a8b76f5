"""Where the ledger of a run lies: in the run's folder, or on the disk of one machine.

If the run's folder is on a network file system, the folder holds two files in the ledger's place:

    ledger.json   the pointer: on which machine the ledger lies, in which file, and how old the copy
                  is
    ledger.db     a copy of the ledger, made at the start, at checkpoints and at the end

At the end of the run the copy is complete, and the pointer is removed. Then the folder is like that
of any other run. A reader takes the ledger itself if it runs on that machine, and the copy if not.
"""

from __future__ import annotations

import contextlib
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.model.limits import CARD_MAX_BYTES
from outlast.model.texts import duration
from outlast.runtime import clock
from outlast.runtime.folders.given import read_small

NAME, LEDGER = "ledger.json", "ledger.db"


@dataclass(frozen=True, slots=True)
class Pointer:
    """This says where the ledger of a run lies.

    node           the host name of that machine, for people
    machine        what distinguishes the machine from others
    ledger         the path of the ledger there
    copied_wall_s  when the copy in the run's folder was made, in Unix seconds; 0: none was made
    """

    node: str
    machine: str
    ledger: str
    copied_wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """The file to read.

    copied_ago_s   the age of the copy in seconds; None: `path` is the ledger itself
    elsewhere      where the ledger itself lies, in words; "": here
    """

    path: Path
    copied_ago_s: float | None = None
    elsewhere: str = ""

    @property
    def note(self) -> str:
        """Return two sentences for people if this is a copy; "" if it is the ledger itself."""
        if self.copied_ago_s is None:
            return ""
        age = duration(self.copied_ago_s)
        return f"This is a copy of the ledger, {age} old. The ledger itself lies {self.elsewhere}."


def this_machine() -> str:
    """Return what distinguishes this machine from others, also after it has started again."""
    name = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = Path("/etc/machine-id").read_text().strip()
    return f"{platform.node()} {name}".strip()


def point_to(folder: Path, ledger: Path, *, copied_wall_s: float = 0.0) -> None:
    """Write the pointer of a run whose ledger lies on this machine. Raises OSError."""
    pointer = Pointer(platform.node(), this_machine(), str(ledger), copied_wall_s)
    part = folder / f"{NAME}.part"
    part.write_text(json.dumps(asdict(pointer), indent=2) + "\n")
    part.replace(folder / NAME)


def read_pointer(folder: Path) -> Pointer | None:
    """Return the pointer of a run; None: its ledger lies in its folder. Raises RunFolderError."""
    try:
        fields = json.loads(read_small(folder / NAME, most_bytes=CARD_MAX_BYTES))
        copied = float(fields["copied_wall_s"])
        node, machine, ledger = (fields[name] for name in ("node", "machine", "ledger"))
        texts = all(isinstance(one, str) for one in (node, machine, ledger))
        if not texts or not Path(ledger).is_absolute():
            raise ValueError("a field has the wrong type")
        return Pointer(node, machine, ledger, copied)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{folder / NAME} cannot be read: {error}",
            hint="remove it to read the copy of the ledger that lies beside it",
        ) from None


def find_ledger(folder: Path) -> LedgerPlace:
    """Return the file from which the ledger of a run can be read here.

    It may not exist. Raises RunFolderError if the pointer cannot be read, or if the ledger lies on
    another machine and there is no copy yet.
    """
    pointer, copy = read_pointer(folder), folder / LEDGER
    if pointer is None:
        return LedgerPlace(copy)
    ledger = Path(pointer.ledger)
    if pointer.machine == this_machine() and ledger.is_file():
        return LedgerPlace(ledger)
    if not copy.is_file():
        raise RunFolderError(
            f"the ledger of {folder} lies on {pointer.node} in {ledger}, and there is no copy yet",
            hint=f"run the command on {pointer.node}, or again in a moment",
        )
    ago_s = max(0.0, clock.wall_s() - pointer.copied_wall_s)
    return LedgerPlace(copy, ago_s, f"on {pointer.node} in {ledger}")


def forget_pointer(folder: Path) -> None:
    """Remove the pointer: the ledger in the folder is the run's own. Raises OSError."""
    (folder / NAME).unlink(missing_ok=True)
