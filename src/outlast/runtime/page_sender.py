"""Send a page about an interruption: by a command, by a webhook, or by both.

The launcher starts this as a separate process for each page, and does not wait for it. So a webhook
that never answers, or a command that never ends, delays nothing.

Input      One JSON object on stdin: {"page": {...}, "command": [...] or null, "webhook": url or
           null}.
Output     "sent" on stdout if everything that was requested succeeded. Otherwise the reason on
           stderr. The address of a webhook is a secret, so it is in neither.
Tries      There are up to TRIES_COUNT, with increasing pauses. A webhook that refuses what it was
           sent (400, 404) is not tried again.
Command    It gets the page as JSON on stdin, and OUTLAST_RUN, OUTLAST_INTERRUPTION and OUTLAST_TEXT
           in its environment. No shell is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from outlast.model.limits import PAGE_SENT
from outlast.model.texts import cut_at_word

TRIES_COUNT = 5
PAUSES_S = (1.0, 4.0, 15.0, 60.0)  # between two tries
TRY_S = 20.0  # one try takes no longer
_WORDS_COUNT = 300
_AGAIN = {408, 425, 429}  # answers below 500 after which another try may succeed

Page = Mapping[str, Any]


class _Refused(Exception):
    """A page was refused. The text says why, and posting it again would not help."""


def main() -> int:
    """Send the page on stdin, and return the exit code."""
    asked = json.load(sys.stdin)
    page = asked["page"]
    failed = []
    if asked["command"]:
        failed += _tried(lambda: run_command(asked["command"], page), "the command")
    if asked["webhook"]:
        failed += _tried(lambda: post(asked["webhook"], page), "the webhook")
    if failed:
        print(cut_at_word("; ".join(failed), _WORDS_COUNT), file=sys.stderr)
        return 1
    print(PAGE_SENT, flush=True, file=sys.stdout)
    return 0


def _tried(
    send: Callable[[], None], what: str, *, pause: Callable[[float], None] = time.sleep
) -> list[str]:
    """Send until it succeeds. Return why it did not; an empty list if it did."""
    why = ""
    for number in range(TRIES_COUNT):
        if number:
            pause(PAUSES_S[number - 1])
        try:
            with _bounded(TRY_S):
                send()
            return []
        except _Refused as error:
            return [f"{what}: {error}"]
        except Exception as error:  # boundary: a network and a program can raise any error
            why = f"{what}, {number + 1} tries: {error}"
    return [why]


@contextlib.contextmanager
def _bounded(within_s: float) -> Iterator[None]:
    """Raise TimeoutError in the block when the time is over.

    The time-outs of a socket begin again with each byte, so a slow answer would have no limit.
    """

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {within_s:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, within_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def text_of(page: Page) -> str:
    """Return the page as people read it."""
    lines = [f"outlast: {page['run']}, interruption {page['interruption']}: {page['reason']}"]
    if page.get("verdict"):
        lines.append(str(page["verdict"]))
    lines.append(f"step {page['step']:,}; {page['folder']}")
    return "\n".join(lines)


def run_command(command: list[str], page: Page) -> None:
    """Run the command. It and its children are killed if it takes too long.

    Raises OSError if it cannot be started, or fails.
    """
    environment = {
        **os.environ,
        "OUTLAST_RUN": str(page["run"]),
        "OUTLAST_INTERRUPTION": str(page["interruption"]),
        "OUTLAST_TEXT": text_of(page).replace("\0", ""),
    }
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(json.dumps(page).encode())
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OSError(f"exit code {process.returncode}" + (f", {last[0]}" if last else ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect: a page goes only to the address that was given."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> None:
        return None


def post(address: str, page: Page) -> None:
    """Post the page in the shape that Slack's webhooks take: {"text": ...}.

    Raises OSError if another try may succeed, and _Refused if none will.
    """
    body = json.dumps({"text": _for_slack(text_of(page))}).encode()
    request = urllib.request.Request(
        address,
        data=body,
        method="POST",
        headers={"Content-Type": "application/json", "User-Agent": "outlast"},
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TRY_S):
            return
    except urllib.error.HTTPError as error:
        said = f"it answers {error.code}"
        if error.code < 500 and error.code not in _AGAIN:
            raise _Refused(said) from None
        raise OSError(said) from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def _for_slack(text: str) -> str:
    """Escape what Slack interprets: links, and mentions of all people."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


if __name__ == "__main__":
    sys.exit(main())
