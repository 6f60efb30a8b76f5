"""Files that come with the package."""

from __future__ import annotations

from importlib.resources import files

from outlast.errors import UsageError
from outlast.model.strict import meant


def names(package: str, folder: str, suffix: str) -> tuple[str, ...]:
    """Return the names of the files in a folder of a package, without their suffix, sorted."""
    return tuple(
        sorted(
            one.name.removesuffix(suffix)
            for one in (files(package) / folder).iterdir()
            if one.name.endswith(suffix)
        )
    )


def text(package: str, folder: str, name: str, suffix: str, *, what: str) -> str:
    """Return the text of a file in `names`. Raises UsageError for another name.

    The error calls such a file `what`.
    """
    known = names(package, folder, suffix)
    if name not in known:
        raise UsageError(f"there is no {what} {name!r}", hint=meant(name, known))
    return (files(package) / folder / f"{name}{suffix}").read_text(encoding="utf-8")
