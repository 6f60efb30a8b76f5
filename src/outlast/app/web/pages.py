"""The pages: an overview of all runs, and for each run its page, nodes, ranks and files.

All links are relative, so the pages work behind `kubectl port-forward` and behind a proxy that adds
a path. The pages of one run are side by side in `runs/NAME/`; what a page is about stands in its
query, so that a name of a node can hold any character.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote  # tidy: it quotes, and opens nothing

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from outlast.app.page.page_html import PARTS, environment, shipped
from outlast.app.page.page_model import Page, losses
from outlast.app.page.svg import bar
from outlast.app.web.site import RunLinks, Site
from outlast.app.web.stream import Streams
from outlast.diagnose.redact import clean
from outlast.errors import RunFolderError
from outlast.runtime.folders.run_files import RunFile, run_files, tail

ON_A_PAGE = 50  # runs on one page of the overview
LISTED_MOST = 200  # interruptions on one page of their list
TAIL_BYTES = 64 * 1024  # of a file, in one answer
LINKS = RunLinks()


def router() -> APIRouter:
    """Return the pages, which the description of the API leaves out."""
    out = APIRouter(include_in_schema=False)
    for path, answer in (
        ("/", overview),
        ("/static/page.css", style),
        ("/static/live.js", script),
        ("/runs/{run}", to_folder),
        ("/runs/{run}/", run_page),
        ("/runs/{run}/events", events),
        ("/runs/{run}/node", node_page),
        ("/runs/{run}/rank", rank_page),
        ("/runs/{run}/interruption", interruption_page),
        ("/runs/{run}/interruptions", interruptions_page),
        ("/runs/{run}/files", files_page),
        ("/runs/{run}/file", file_page),
    ):
        out.add_api_route(path, answer, methods=["GET"], response_class=HTMLResponse)
    return out


def warm_up(site: Site) -> None:
    """Do once what the first answers need: compile the templates, and read the newest runs."""
    for name in environment().list_templates(extensions=["html"]):
        environment().get_template(name)
    site.warm_up(site.names()[:ON_A_PAGE])


def site_of(request: Request) -> Site:
    """Return the site that the server of this request shows."""
    found: Site = request.app.state.site
    return found


def overview(request: Request, page: Annotated[int, Query(ge=1, le=10_000)] = 1) -> Response:
    """Answer with a page of the overview; if only one run is shown, redirect to it."""
    site = site_of(request)
    if site.only is not None:
        return RedirectResponse(f"runs/{quote(site.only, safe='')}/")
    names = site.names()
    some = names[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    return html(
        "overview.html",
        cards=[site.card(name) for name in some],
        page_number=page,
        more=len(names) > page * ON_A_PAGE,
        all_count=len(names),
        root=str(site.root),
    )


def style() -> Response:
    return Response(str(shipped("page.css")), media_type="text/css")


def script() -> Response:
    return Response(str(shipped("live.js")), media_type="text/javascript")


def to_folder(run: str) -> Response:
    """Redirect to the address with a slash at its end: the page's links are relative to it."""
    return RedirectResponse(f"{quote(run, safe='')}/")


def run_page(request: Request, run: str) -> Response:
    """Answer with the page of a run."""
    shown = site_of(request).shown(run)
    return html("run.html", page=shown.page, parts=shown.parts, names=PARTS, links=LINKS)


async def events(request: Request, run: str) -> Response:
    site, streams = site_of(request), request.app.state.streams
    assert isinstance(streams, Streams)
    site.path(run)
    if not streams.has_room:
        return Response("too many pages are open", 503, {"Retry-After": "10"})
    return StreamingResponse(streams.events(site, run), media_type="text/event-stream")


def node_page(request: Request, run: str, name: str = "") -> Response:
    page = site_of(request).shown(run).page
    node = next((one for one in page.nodes if one.name == name), None)
    if node is None:
        raise NotHereError(f"the run has no node {name}", hint="its page lists the nodes")
    some = [one for one in page.report["interruptions"] if name in one["nodes"]]
    return _run_html("node.html", page, title=f"node {name}", node=node, some=some[-LISTED_MOST:])


def rank_page(
    request: Request, run: str, number: Annotated[int, Query(ge=0, le=10_000_000)]
) -> Response:
    site = site_of(request)
    page = site.shown(run).page
    rank = next((one for node in page.nodes for one in node.ranks if one.rank == number), None)
    if rank is None:
        raise NotHereError(f"the run has no rank {number}", hint="its page lists the ranks")
    lives = site.lives(run, number)
    some = [one for one in page.report["interruptions"] if number in one["ranks"]]
    return _run_html(
        "rank.html",
        page,
        title=f"rank {number}",
        rank=rank,
        lives=lives[-LISTED_MOST:],
        seconds=losses(site.rank_seconds(run, number)),
        some=some[-LISTED_MOST:],
        files=_of_rank(run_files(site.path(run), under="logs"), number, page),
    )


def interruption_page(request: Request, run: str, id: int) -> Response:  # noqa: A002 - the URL's
    site = site_of(request)
    page = site.shown(run).page
    one = next((one for one in page.report["interruptions"] if one["id"] == id), None)
    if one is None:
        raise NotHereError(f"the run has no interruption {id}", hint="its page lists them")
    return _run_html(
        "interruption_page.html",
        page,
        title=f"interruption {id}",
        one=one,
        verdict=page.verdicts.get(id),
        files=run_files(site.path(run), under=f"evidence/interruption-{id}"),
    )


def interruptions_page(
    request: Request, run: str, before: Annotated[int | None, Query(ge=0)] = None
) -> Response:
    page = site_of(request).shown(run).page
    every = page.report["interruptions"]
    some = [one for one in every if before is None or one["id"] < before]
    return _run_html(
        "interruptions_page.html",
        page,
        title="interruptions",
        some=some[-LISTED_MOST:],
        older=len(some) > LISTED_MOST,
    )


def files_page(request: Request, run: str) -> Response:
    site = site_of(request)
    page = site.shown(run).page
    return _run_html("files.html", page, title="logs and evidence", files=run_files(site.path(run)))


def file_page(
    request: Request, run: str, path: str, before: Annotated[int | None, Query(ge=0)] = None
) -> Response:
    site = site_of(request)
    page = site.shown(run).page
    end = tail(site.path(run), path, most_bytes=TAIL_BYTES, before=before)
    text = clean(end.data.decode("utf-8", "replace"), lines=True)
    return _run_html("file.html", page, title=path, file=end, text=text)


class NotHereError(RunFolderError):
    """The run has no such node, rank or interruption."""


def _of_rank(files: list[RunFile], rank: int, page: Page) -> list[RunFile]:
    """Return the logs of a rank; of a run on several nodes, ranks share names of folders."""
    if len(page.nodes) > 1:
        return []
    return [one for one in files if one.path.split("/")[-2:-1] == [str(rank)] and one.size_bytes]


def _run_html(template: str, page: Page, **values: Any) -> Response:
    return html(template, page=page, links=LINKS, bar=bar, **values)


def html(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page that is made of a template."""
    return HTMLResponse(environment().get_template(template).render(**values), status_code=status)


def problem_page(run: str, said: Mapping[str, str], *, status: int) -> Response:
    """Return a page that says why there is no other one."""
    return html("problem.html", status=status, run=run, said=said)
