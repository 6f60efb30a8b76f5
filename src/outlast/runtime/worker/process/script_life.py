"""Where the script is in one life of main's function, and what its loop carries.

A process that replaces a rank runs the script from its first line, so a variable that an earlier
step has set is not set there. Python then raises a NameError, which does not mention the
replacement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(slots=True)
class ScriptPlace:
    """The place of the script in this life of main's function.

    in_body        the main thread runs the body of a step, where it may be interrupted between any
                   two bytecodes
    in_steps       run.steps was called
    rehearses      a step is executed whose result is dropped, on the solo group (rehearsal.py)
    rehearsed      that step has been executed
    left_loop_at   the line at which the loop was left by `break` or an error; "": it was not
    carried        the names of variables that the loop carries from step to step, and are not kept
    """

    in_body: bool = False
    in_steps: bool = False
    rehearses: bool = False
    rehearsed: bool = False
    left_loop_at: str = ""
    carried: frozenset[str] = frozenset()

    def unset(self, error: BaseException) -> str | None:
        """Return the carried variable that this process never set, if the error is about one."""
        if not isinstance(error, NameError):
            return None
        # an UnboundLocalError has the name only in its text
        named = {error.name, *re.findall(r"'(\w+)'", str(error))}
        return next((name for name in sorted(self.carried) if name in named), None)
