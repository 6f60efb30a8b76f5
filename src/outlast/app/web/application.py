"""The web application: pages and API over one Site, behind the guard."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from outlast import __version__
from outlast.app.web import actions, json_api, pages
from outlast.app.web.guard import Guard
from outlast.app.web.site import NoRunError, Site
from outlast.app.web.stream import Streams
from outlast.diagnose.redact import clean
from outlast.errors import OutlastError
from outlast.runtime.folders.run_files import NoFileError


def application(site: Site, *, allowed: Iterable[str] = (), token: bytes | None = None) -> ASGIApp:
    """Return the application.

    allowed   names of hosts besides addresses and localhost
    token     who shows it may act on runs; None: runs are only read
    """
    app = FastAPI(
        title="outlast",
        version=__version__,
        description="Runs of outlast, to be read.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.site = site
    app.state.streams = Streams()
    app.state.desk = actions.ActionDesk(token)
    app.include_router(pages.router())
    app.include_router(actions.router())
    app.include_router(json_api.router())
    app.add_exception_handler(OutlastError, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(HTTPException, _no_page)
    return Guard(app, allowed, posts=() if token is None else actions.POSTS)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, OutlastError)
    unknown = isinstance(error, NoRunError | NoFileError | pages.NotHereError)
    said = {"error": clean(error.message), "hint": clean(error.hint)}
    status = 400 if isinstance(error, actions.NotAFormError) else 404 if unknown else 503
    return _answer(request, said, status=status)


def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(one) for one in first.get("loc", ())[1:])
    said = {"error": clean(f"{where}: {first.get('msg', '')}"), "hint": "see /api/openapi.json"}
    return _answer(request, said, status=400)


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {"error": str(error.detail), "hint": "the overview lists the runs"}
    return _answer(request, said, status=error.status_code)


def _answer(request: Request, said: dict[str, str], *, status: int) -> Response:
    """Return the error as JSON for a program, or as a page for a person."""
    if request.url.path.startswith("/api/"):
        answer: Response = JSONResponse(said, status)
    else:
        answer = pages.problem_page(request.path_params.get("run", ""), said, status=status)
    if status == 503:
        answer.headers["Retry-After"] = "5"
    return answer
