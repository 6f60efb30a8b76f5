"""Replace the standard streams of this process that its caller has closed."""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open closed standard streams, so that they write to /dev/null.

    A service manager may start a process without them, and so does `>&-` in a shell. The next file
    that is opened would get the number of the stream, and would receive what is printed. That file
    might be the ledger of a run. Processes that are started from here inherit the streams.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # it is inherited, even where both are the same number
            os.set_inheritable(number, True)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - lives as long as the process
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
