"""Check every request: who may ask, how, and what a browser may do with the answer.

Hosts      A page from elsewhere may make a browser ask a name of its own that leads to this
           machine (DNS rebinding), and so read what only this user may see. So the name in the
           request must be an address, localhost, or one that was allowed on the command line.
Methods    GET only, so nothing can be changed. If the server has a token, the forms of actions.py
           may be sent by POST. They must come from a page of this server, which a browser says in
           Sec-Fetch-Site or Origin, and must be short.
Browsers   No script and no style but those of this package, no frame, no guessing of types.
"""

from __future__ import annotations

import ipaddress
import re
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


FORM_MOST_BYTES = 16 * 1024
FORM = "application/x-www-form-urlencoded"


class Guard:
    """Refuse requests that are not allowed, and add HEADERS to every answer.

    posts   the last parts of the addresses below a run to which forms may be sent
    """

    def __init__(
        self, app: ASGIApp, allowed: Iterable[str] = (), *, posts: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed} | {"localhost"}
        names = "|".join(map(re.escape, posts))
        self._forms = re.compile(rf"/runs/[^/]+/(?:{names})") if names else None

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
        elif scope["method"] == "GET":
            await self._app(scope, receive, guarded)
        elif scope["method"] != "POST" or not self._is_form(scope["path"]):
            text = "Runs are only read here: GET.\n"
            answer = PlainTextResponse(text, status_code=405, headers={"Allow": "GET"})
            await answer(scope, receive, guarded)
        elif refused := why_no_form(Headers(scope=scope)):
            status, text = refused
            await PlainTextResponse(f"{text}\n", status_code=status)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _is_form(self, path: str) -> bool:
        return self._forms is not None and self._forms.fullmatch(path) is not None

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


def why_no_form(headers: Headers) -> tuple[int, str] | None:
    """Return a status and a reason if a request is not from a page of this server; else None."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        return 411, "A form has a length."
    if int(length[:12]) > FORM_MOST_BYTES:
        return 413, "This is too long for a form."
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return 415, "This is not how a form is sent."
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return 403, "Only pages of this server may send forms."
    # Without a referrer, a browser says that the origin is null. Then the form's key decides.
    origin = headers.get("origin", "null")
    if origin != "null" and origin.partition("://")[2] != headers.get("host", ""):
        return 403, "Only pages of this server may send forms."
    return None
