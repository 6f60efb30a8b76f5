"""`outlast serve`: the page of a run in a browser, live, and an overview of many runs.

    outlast serve                 all runs under runs/
    outlast serve runs/x          one run
    outlast serve /data/runs      all runs in another folder

The server only reads runs, and writes nothing. With a token (OUTLAST_TOKEN or --token-file), people
who show it may send commands to a live run from its page, as `outlast stop` and `outlast drain` do:
the server passes them to the launcher over its control socket. The server is a process of its own
with the lowest priority, so training does not notice when it ends or has many requests. What the
first answers need is done before the priority is given up. Ctrl-C ends the server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from outlast.app.command_line import Parser, whole
from outlast.errors import UsageError
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_files import is_run
from outlast.runtime.network import token
from outlast.runtime.network.web_socket import LOCAL, listening

PORT = 7007
IDLE_S = 5  # a connection without a request is closed


def main(argv: Sequence[str]) -> int:
    """Run `outlast serve` until it is ended, and return its exit code."""
    args = parser().parse_args(list(argv))
    lacking = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if lacking:
        raise UsageError(
            f"`outlast serve` needs {' and '.join(lacking)}", hint="pip install 'outlast[web]'"
        )
    secret = token.read_token(token.take_from_environment(), args.token_file or "")
    root, only = place(args.where)
    import uvicorn

    from outlast.app.web.application import application
    from outlast.app.web.connections import BoundedConnection
    from outlast.app.web.pages import warm_up
    from outlast.app.web.site import Site

    site = Site(root, only)
    app = application(site, allowed=args.allow_host, token=secret)
    with listening(args.host, args.port) as opened:
        warm_up(site)
        os.nice(19)
        what = f"run {only}" if only else f"runs under {root}/"
        print(f"outlast serve: {what} at {opened.url}", flush=True)
        if secret is not None:
            print("actions are on the page of each live run, behind the token", flush=True)
        if args.host not in LOCAL:
            who_reads = " and the token on its way" if secret is not None else ""
            print(
                "warning: anybody who can reach this port can read the logs of these runs"
                f"{who_reads}",
                flush=True,
            )
        config = uvicorn.Config(
            app,
            http=BoundedConnection,
            log_level="error",  # a bad request says nothing to the person at this terminal
            access_log=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=1,
            server_header=False,
            lifespan="off",
        )
        uvicorn.Server(config).run(sockets=[opened.socket])
    sys.stdout.flush()
    return 0


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(
        prog="outlast serve",
        description="Show runs in a browser, live, for this machine only. With a token"
        " (OUTLAST_TOKEN), people who show it may act on runs, too.",
    )
    out.add_argument(
        "where",
        nargs="?",
        metavar="RUN|FOLDER",
        help="a run, or a folder of runs (default: all runs under runs/)",
    )
    out.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen at (default: 127.0.0.1)",
    )
    out.add_argument(
        "--port",
        type=whole,
        default=PORT,
        metavar="N",
        help=f"port to listen on; 0: any that is free (default: {PORT})",
    )
    out.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also answer browsers that ask by this name, as behind a proxy; may be repeated",
    )
    out.add_argument(
        "--token-file",
        metavar="FILE",
        help="people who show the token in FILE may stop, drain and save runs from their pages"
        " (default: OUTLAST_TOKEN; without a token, runs are only read)",
    )
    return out


def place(where: str | None) -> tuple[Path, str | None]:
    """Return the folder of runs, and the one run to serve, or None for all of them."""
    if where is None:
        return run_folder.ROOT, None
    for path in (Path(where), run_folder.ROOT / where):
        if is_run(path):
            return path.resolve().parent, path.resolve().name
        if path.is_dir():
            return path, None
    found = run_folder.find(where)
    return found.parent, found.name
