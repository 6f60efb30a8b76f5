"""The actions on the page of a run: stop it, save it, take work from a node.

They are the requests of `outlast stop`, `ckpt now`, `drain`, `cordon` and `uncordon`, and take the
same way: the launcher's control socket. So the launcher writes into its ledger who asked, and why.

    GET   actions     what can be asked, and what was answered; or a form for the token
    POST  sign-in     the token is shown, and the browser gets a cookie
    POST  confirm     an action is named; the answer is a page that asks for a reason and a yes
    POST  act         yes: the launcher is asked, and the browser is sent back to `actions`
    POST  sign-out    the session ends

All are forms that work without a script. The guard (guard.py) lets no request through that another
site has made, and each form of a session sends back a number that no other site knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl  # tidy: it reads text, and opens nothing

from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from outlast.app.web.pages import LINKS, html, site_of
from outlast.app.web.signed_in import AnsweredAction, PageAction, PageSession, SignedIn
from outlast.app.web.site import Shown, Site
from outlast.diagnose.redact import clean
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Request as AskedOfRun
from outlast.model.messages import RequestAnswer
from outlast.model.texts import cut_at_word
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import clock
from outlast.runtime.control_call import ControlCall, FolderLauncher

POSTS = ("sign-in", "sign-out", "confirm", "act")  # the guard lets no other POST through
OF_RUN, OF_NODES = ("checkpoint", "stop"), ("drain", "cordon", "uncordon")
ANSWER_WAIT_S = 2.0  # a request that takes longer is shown as one that waits
ASKED_MOST_COUNT = 4  # launchers that are asked at once
NAME_MOST_CHARS = 60
REQUESTS_MOST_COUNT = 50  # that a page shows; the newest ones
FIELDS_MOST_COUNT = 10


def router() -> APIRouter:
    """Return the pages, which the description of the API leaves out."""
    out = APIRouter(include_in_schema=False)
    out.add_api_route("/runs/{run}/actions", actions, methods=["GET"], response_class=HTMLResponse)
    for name, answer in (
        ("sign-in", sign_in),
        ("sign-out", sign_out),
        ("confirm", confirm),
        ("act", act),
    ):
        out.add_api_route(f"/runs/{{run}}/{name}", answer, methods=["POST"])
    return out


class ActionDesk:
    """The sessions of a server, and its limit on launchers that are asked at once."""

    def __init__(self, token: bytes | None) -> None:
        self.signed_in = SignedIn(token, now_s=clock.now_s)
        self.limiter = CapacityLimiter(ASKED_MOST_COUNT)


def _desk(request: Request) -> ActionDesk:
    found: ActionDesk = request.app.state.desk
    return found


def _session(request: Request) -> PageSession | None:
    signed_in = _desk(request).signed_in
    return signed_in.session(request.cookies.get(signed_in.cookie, ""))


# --- pages ----------------------------------------------------------------------------------------


async def actions(request: Request, run: str) -> Response:
    """Show what can be asked of a run, and what was answered."""
    return await _page(request, run)


async def _page(request: Request, run: str, status: int = 200, trouble: str = "") -> Response:
    """Return the page of actions. `trouble`: what went wrong is on top of it.

    Sessions are used on the thread of the server alone, and the page is made on another one.
    """
    session, enabled = _session(request), _desk(request).signed_in.enabled
    answered = [] if session is None else list(session.answers)[::-1]
    make = functools.partial(
        _actions_page,
        site_of(request),
        run,
        status=status,
        enabled=enabled,
        session=session,
        answered=answered,
        trouble=trouble,
    )
    page: Response = await run_in_threadpool(make)
    return page


def _actions_page(site: Site, run: str, *, status: int, **values: Any) -> Response:
    shown = site.shown(run)
    return html(
        "actions.html",
        status=status,
        page=shown.page,
        links=LINKS,
        title="actions",
        nodes=list(nodes_of(shown)),
        requests=shown.page.report["requests"][-REQUESTS_MOST_COUNT:][::-1],
        words=action_words,
        **values,
    )


def nodes_of(shown: Shown) -> Iterator[str]:
    """Yield the nodes of a run by name: those with ranks, and those that stand ready."""
    names = {one.name for one in shown.page.nodes if one.name}
    for one in shown.page.report["node_events"]:
        if one["kind"] == "joined":
            names.add(one["node"])
        elif one["kind"] == "lost":
            names.discard(one["node"])
    yield from sorted(names)


def action_words(action: PageAction) -> str:
    """Return an action as an order, such as "drain node-b"."""
    match action.what:
        case "checkpoint":
            return "write a checkpoint now"
        case "stop":
            return f"stop {action.run}"
        case _:
            return f"{action.what} {action.node}"


# --- forms ----------------------------------------------------------------------------------------


async def sign_in(request: Request, run: str) -> Response:
    """Begin a session for a browser that shows the token."""
    fields, signed_in = await _fields(request), _desk(request).signed_in
    if signed_in.is_locked:
        why = "Too many wrong tokens. Wait a minute, then try again."
        return await _page(request, run, 429, why)
    name = cut_at_word(" ".join(clean(fields.get("name", "")).split()), NAME_MOST_CHARS)
    value = signed_in.sign_in(fields.get("token", ""), name)
    if value is None:
        return await _page(request, run, 403, "This is not the token of this server.")
    answer = RedirectResponse("actions", 303)
    answer.set_cookie(signed_in.cookie, value, httponly=True, samesite="strict")
    return answer


async def sign_out(request: Request, run: str) -> Response:
    """End the session of this browser."""
    fields, signed_in, session = await _fields(request), _desk(request).signed_in, _session(request)
    if session is None or not session.owns_form(fields.get("key", "")):
        return await _page(request, run, 403, _STALE)
    signed_in.sign_out(request.cookies.get(signed_in.cookie, ""))
    answer = RedirectResponse("actions", 303)
    answer.delete_cookie(signed_in.cookie, httponly=True, samesite="strict")
    return answer


async def confirm(request: Request, run: str) -> Response:
    """Ask for a reason and a yes, before the run is asked."""
    fields, session = await _fields(request), _session(request)
    if session is None or not session.owns_form(fields.get("key", "")):
        return await _page(request, run, 403, _STALE)
    shown = await run_in_threadpool(site_of(request).shown, run)
    what, node = fields.get("what", ""), fields.get("node", "")
    known = not node if what in OF_RUN else what in OF_NODES and node in nodes_of(shown)
    if not known:
        return await _page(request, run, 400, "There is no such action, or no such node.")
    action = PageAction(run, what, node)
    return html(
        "confirm.html",
        page=shown.page,
        links=LINKS,
        title=f"{action_words(action)}?",
        session=session,
        action=action,
        number=session.prepare(action),
        words=action_words,
        most=limits.CONTROL_REASON_CHARS,
    )


async def act(request: Request, run: str) -> Response:
    """Ask the launcher of the run for what was confirmed, and go back to the actions."""
    fields, session, desk = await _fields(request), _session(request), _desk(request)
    if session is None or not session.owns_form(fields.get("key", "")):
        return await _page(request, run, 403, _STALE)
    action = session.confirm(fields.get("number", ""))
    if action is None or action.run != run:
        why = "This was asked already, or too long ago. Nothing was asked again."
        return await _page(request, run, 409, why)
    address = request.client.host if request.client else "an unknown address"
    by = f"{session.name or 'somebody'} on the page at {address}"
    asks = AskedOfRun(
        WIRE_VERSION,
        action.what,
        action.node,
        cut_at_word(fields.get("reason", "").strip(), limits.CONTROL_REASON_CHARS),
        by,
    )
    path = site_of(request).path(run)
    call = functools.partial(_ask, FolderLauncher(path), asks)
    said = await _asked(desk, call)
    session.answers.append(AnsweredAction(action, said.state, said.text, clock.wall_s()))
    return RedirectResponse("actions", 303)


_STALE = "You are not signed in any more, or this form is of another session. Nothing was asked."


async def _asked(desk: ActionDesk, call: Callable[[], RequestAnswer]) -> RequestAnswer:
    """Ask a launcher in a thread, and at most ASKED_MOST_COUNT at once."""
    async with desk.limiter:
        return await run_in_threadpool(call)


def _ask(launcher: FolderLauncher, request: AskedOfRun) -> RequestAnswer:
    """Ask a launcher, and return the newest answer that came within ANSWER_WAIT_S."""
    said = [RequestAnswer("waits", "the launcher")]
    try:
        with ControlCall(launcher, request) as call:
            said.extend(call.answers(within_s=ANSWER_WAIT_S))
    except OutlastError as error:
        return RequestAnswer("", f"{error.message}; {error.hint}" if error.hint else error.message)
    return said[-1]


class NotAFormError(UsageError):
    """A request was sent that is not what a form of the page sends."""


async def _fields(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. The guard has limited its length. Raises UsageError."""
    body = await request.body()
    try:
        return dict(
            parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=bool(body),
                encoding="utf-8",
                errors="replace",
                max_num_fields=FIELDS_MOST_COUNT,
            )
        )
    except ValueError:
        raise NotAFormError("this is no form", hint="use the forms of the page") from None
