"""The options of `outlast run` that say how pages are sent."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from urllib.parse import urlsplit

from outlast.errors import UsageError


def page_command(text: str | None) -> tuple[str, ...]:
    """Return the words of --page-command. Raises UsageError if there is no such program."""
    if text is None:
        return ()
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--page-command cannot be split into words: {error}", hint="check its quotes"
        ) from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--page-command {words[0] if words else text!r}: there is no such program",
            hint="name one that can be run; for a pipe or a variable write sh -c '...'",
        )
    return tuple(words)


def page_webhook(text: str | None, environment: Mapping[str, str]) -> str:
    """Return the URL of --page-webhook, which may be in a variable. Raises UsageError.

    The URL is a secret, so no message shows it.
    """
    if text is None:
        return ""
    url = text
    if text.startswith("$"):
        url = environment.get(text[1:].strip("{}"), "")
        if not url:
            raise UsageError(
                f"--page-webhook {text}: there is no such variable, or it is empty",
                hint="export it before `outlast run`",
            )
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii()
    except ValueError:
        sound = False
    if not sound or any(letter.isspace() for letter in url):
        raise UsageError(
            "--page-webhook is not an address of a web server",
            hint="write https://... , or '$NAME' for one that is in a variable",
        )
    return url
