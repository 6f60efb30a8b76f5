"""Check every request: who may ask, how, and what a browser may do with the answer.

Hosts      A page from elsewhere may make a browser ask a name of its own that leads to this
           machine (DNS rebinding), and so read what only this user may see. So the name in the
           request must be an address, localhost, or one that was allowed on the command line.
Methods    GET only. Nothing can be changed.
Browsers   No script and no style but those of this package, no frame, no guessing of types.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuse requests that are not allowed, and add HEADERS to every answer."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not self.allows(host):
            text = "This name is not allowed here. Start with --allow-host NAME to allow it.\n"
            await PlainTextResponse(text, status_code=421)(scope, receive, guarded)
        elif scope["method"] != "GET":
            text = "Runs are only read here: GET.\n"
            answer = PlainTextResponse(text, status_code=405, headers={"Allow": "GET"})
            await answer(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def allows(self, host: str) -> bool:
        """Return whether a request may name this host (with or without a port)."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").rstrip(".").lower()
        if name in self._allowed:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
