"""Flight recorder dumps: read them safely, keep them small, and find which rank waits for which."""

from outlast.diagnose.collectives.blame import Blame
from outlast.diagnose.collectives.dumps import looks_like_dump, read_dump
from outlast.diagnose.collectives.naming import rank_of_dump
from outlast.diagnose.collectives.packed import Packer, Unpacker
from outlast.diagnose.collectives.pickles import OversizedDump, UnreadableDump
from outlast.diagnose.collectives.skew import clock_offsets
from outlast.diagnose.collectives.state import Dump, GroupState, Traffic
from outlast.diagnose.collectives.wait_for import find_blame

__all__ = [
    "Blame",
    "Dump",
    "GroupState",
    "OversizedDump",
    "Packer",
    "Traffic",
    "Unpacker",
    "UnreadableDump",
    "clock_offsets",
    "find_blame",
    "looks_like_dump",
    "rank_of_dump",
    "read_dump",
]
