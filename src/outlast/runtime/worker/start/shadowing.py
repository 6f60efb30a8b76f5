"""A file beside the script that hides a library of the same name.

Python looks for modules in the script's folder first. A file `numpy.py` there is imported if the
script, or a library, imports NumPy. The error that follows does not name that file, and occurs in
each process that is started.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types

from outlast.errors import UsageError


def hidden_library(error: BaseException, folder: str) -> UsageError | None:
    """Return an error that names the file in `folder` which causes `error`, or None.

    The file causes the error if a name was not found in a module that is in `folder`, and a library
    of the same name is elsewhere.
    """
    name = _looked_in(error)
    module = sys.modules.get(name) if name else None
    path = getattr(module, "__file__", None)
    if module is None or path is None:
        return None
    lies = path if not hasattr(module, "__path__") else os.path.dirname(path)
    if os.path.realpath(os.path.dirname(lies)) != os.path.realpath(folder):
        return None
    library = _elsewhere(name, folder)
    if library is None:
        return None
    return UsageError(
        f"{lies} hides the library {name} ({library}): {type(error).__name__}: {error}",
        hint=f"give {lies} another name: Python looks in the script's folder first",
    ).with_traceback(error.__traceback__)


def _looked_in(error: BaseException) -> str:
    """Return the top-level module in which a name or a submodule was not found, or ""."""
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
        return error.obj.__name__.partition(".")[0]
    if isinstance(error, ImportError) and error.name:
        return error.name.partition(".")[0]
    return ""


def _elsewhere(name: str, folder: str) -> str | None:
    """Return where the module would be found without `folder`, or None."""
    there = os.path.realpath(folder)
    path = [one for one in sys.path if os.path.realpath(one or os.getcwd()) != there]
    try:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    inside = spec.submodule_search_locations is not None
    return os.path.dirname(spec.origin) if inside else spec.origin
