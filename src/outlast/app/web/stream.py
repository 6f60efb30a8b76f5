"""The changes on the page of a run, as server-sent events.

    event: part    data: {"name": "answers", "html": "..."}     a part of the page, drawn again
    event: title   data: "training: runs/x"                      the title of the window
    event: over                                                  nothing will change any more
    event: trouble data: {"error": "...", "hint": "..."}         the run cannot be read now

A client gets a part only if it differs from what it got before. A stream ends after LONGEST_S, and
the browser opens another one: so a client that has vanished holds nothing for long. There are at
most STREAMS_MOST at a time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anyio
from starlette.concurrency import run_in_threadpool

from outlast.app.page.page_html import page_title
from outlast.app.web.site import Site
from outlast.errors import OutlastError

LOOK_EVERY_S = 1.0
LONGEST_S = 600.0
SIGN_OF_LIFE_S = 15.0  # a proxy cuts connections that are silent for long
STREAMS_MOST = 32


class Streams:
    """The streams that are open. `enter` one only if `has_room`."""

    def __init__(self, most_count: int = STREAMS_MOST) -> None:
        self._most_count = most_count
        self._open_count = 0

    @property
    def has_room(self) -> bool:
        """Return whether one more may be opened."""
        return self._open_count < self._most_count

    async def events(self, site: Site, name: str) -> AsyncIterator[str]:
        """Yield the events of one client."""
        self._open_count += 1
        try:
            async for event in _events(site, name):
                yield event
        finally:
            self._open_count -= 1


async def _events(site: Site, name: str) -> AsyncIterator[str]:
    sent: dict[str, str] = {}
    began_s = said_s = anyio.current_time()
    yield "retry: 3000\n\n"
    while anyio.current_time() < began_s + LONGEST_S:
        try:
            shown = await run_in_threadpool(site.shown, name)
        except OutlastError as error:
            yield event("trouble", {"error": error.message, "hint": error.hint})
            await anyio.sleep(LOOK_EVERY_S * 5)
            continue
        news = {part: html for part, html in shown.parts.items() if sent.get(part) != html}
        for part, html in news.items():
            yield event("part", {"name": part, "html": html})
            said_s = anyio.current_time()
        if news:
            yield event("title", page_title(shown.page.report))
        sent |= news
        if shown.page.is_over:
            yield event("over", None)
            return
        if anyio.current_time() >= said_s + SIGN_OF_LIFE_S:
            yield ": still here\n\n"
            said_s = anyio.current_time()
        await anyio.sleep(LOOK_EVERY_S)


def event(kind: str, data: object) -> str:
    """Return one event. JSON has no line feed in it, so the data is one line."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
