"""From evidence to a verdict: which rank, which node, why, and how sure.

The code here is pure. Files are read by `outlast/runtime/evidence`.

The package is also the public function `outlast.diagnose(paths)`: a package and a function cannot
share a name otherwise, and this one is what people type.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    """A package that can be called, as `outlast.runtime.evidence.api.diagnose`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The layers below must not import the runtime, and only a call needs it.
        return importlib.import_module("outlast.runtime.evidence.api").diagnose(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
