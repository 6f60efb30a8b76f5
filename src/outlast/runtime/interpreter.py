"""The command that runs a module of outlast in an interpreter of its own.

`python -m` looks for modules in the working folder first. So a file `json.py` beside a user's
script would replace the library's module in outlast's own processes. This command leaves that
folder out. bootstrap.py adds the script's own folder once the script begins.
"""

from __future__ import annotations

import sys
from pathlib import Path

# the folder in which the package outlast itself was found
_ROOT = str(Path(__file__).resolve().parents[2])
_RUN = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]);"
    " sys.path += [{root!r}] * ({root!r} not in sys.path);"
    " import runpy; runpy._run_module_as_main({module!r})"
)


def module_command(module: str, *flags: str) -> tuple[str, ...]:
    """Return the command that runs `module` as `python -m` does. `flags`: the interpreter's."""
    return (sys.executable, *flags, "-c", _RUN.format(root=_ROOT, module=module))
