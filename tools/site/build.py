"""Build the documentation as a site: `make docs`. A warning of Sphinx is an error.

The pages under docs/ link to files of the repository, so that they work where the repository is
read. This program gathers the pages in a folder of its own and rewrites those links: some files
become pages of the site, and a link to any other file is shown as plain text. It also makes three
pages of the reference: the command line, from the parsers; the API, from the docstrings; and the
limits, from the module that defines them.

    python tools/site/build.py            writes build/site/
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[1]
PAGES, SITE = HOME / "build" / "pages", HOME / "build" / "site"
# A file of the repository -> the page of the site that shows it
TAKEN_IN = {
    "README.md": "project/README.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "SECURITY.md": "project/SECURITY.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "benchmarks/RESULTS.md": "project/RESULTS.md",
    "benchmarks/simulator.svg": "project/simulator.svg",
    **{
        f"benchmarks/results/{path.name}": f"project/results/{path.name}"
        for path in sorted((HOME / "benchmarks" / "results").glob("*.md"))
    },
}
MADE = {
    "command-line": "reference/command-line.md",
    "api": "reference/api.md",
    "limits": "reference/limits.md",
}
LIMITS = HOME / "src" / "outlast" / "model" / "limits.py"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Classes that a script passes on and does not call: their methods are outlast's own
OPAQUE = {"State"}
TITLES = {
    "Tutorial": "tutorial",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Project": "project",
}


def main() -> int:
    """Gather the pages, make those that are made, and let Sphinx build them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(HOME / "docs", PAGES)
    for source, page in TAKEN_IN.items():
        (PAGES / page).parent.mkdir(exist_ok=True)
        shutil.copy(HOME / source, PAGES / page)
    (PAGES / MADE["command-line"]).write_text(command_line_page())
    (PAGES / MADE["api"]).write_text(api_page())
    (PAGES / MADE["limits"]).write_text(limits_page(LIMITS.read_text()))
    for path in PAGES.rglob("*.md"):
        path.write_text(rewrite_links(path.read_text(), str(path.relative_to(PAGES))))
    index = PAGES / "index.md"
    index.write_text(index.read_text() + tables_of_contents())
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    return subprocess.run([*sphinx, "-c", str(HERE), str(PAGES), str(SITE)]).returncode


def rewrite_links(text: str, page: str) -> str:
    """Return the text of `page` with links of the repository turned into links of the site.

    A link that leads nowhere is left as it is, so that Sphinx warns.
    """
    origins = {shown: source for source, shown in TAKEN_IN.items()}
    place = origins.get(page, f"docs/{page}")  # where the page lies in the repository

    def rewritten(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path:
            return link.group(0)
        meant = os.path.normpath(os.path.join(os.path.dirname(place), path))
        goal = TAKEN_IN.get(meant, meant.removeprefix("docs/"))
        if meant not in TAKEN_IN and not meant.startswith("docs/"):
            return words if (HOME / meant).exists() else link.group(0)
        relative = os.path.relpath(goal, os.path.dirname(page) or ".")
        return f"{image}[{words}]({relative}{'#' + anchor if anchor else ''})"

    return LINK.sub(rewritten, text)


def tables_of_contents() -> str:
    """Return the navigation: one table for each kind of page."""
    parts = []
    for title, folder in TITLES.items():
        pages = sorted(str(path.relative_to(PAGES)) for path in (PAGES / folder).rglob("*.md"))
        if folder == "explanation":  # pages beside the index are explanations, too
            pages += [path.name for path in PAGES.glob("*.md") if path.name != "index.md"]
        listed = "\n".join(pages)
        parts.append(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n")
    return "".join(parts)


def command_line_page() -> str:
    """Return a page with the help text of each command, as the parsers print it."""
    parts = ["# Command line\n\nThis page is made from the parsers; `--help` prints the same.\n"]
    overview = help_of()
    parts.append(f"```text\n{overview}\n```\n")
    for name in re.findall(r"^ {4}([a-z]+)(?:  |$)", overview, re.MULTILINE):
        parts.append(f"## outlast {name}\n\n```text\n{help_of(name)}\n```\n")
    return "\n".join(parts)


def help_of(*command: str) -> str:
    """Return what `outlast COMMAND --help` prints at 100 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "100"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"outlast {' '.join(command)} --help failed: {done.stderr}")
    return done.stdout.strip()


def api_page() -> str:
    """Return a page with everything that `import outlast` offers: signatures and docstrings."""
    import outlast

    parts = ["# Python API\n\nThis is everything that `import outlast` offers. A name that is not"]
    parts[0] += " here may change without notice.\n"
    for name in sorted(outlast.__all__, key=str.lower):
        thing = getattr(outlast, name)
        if name.startswith("__"):
            continue
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            text = f"{inspect.getdoc(thing) or ''}\n\nExit code: {getattr(thing, 'exit_code', 1)}."
            parts.append(f"## outlast.{name}\n\n{text.strip()}\n")
            continue
        parts.append(f"## outlast.{name}\n\n{described(name, thing)}")
        if inspect.isclass(thing) and name not in OPAQUE:
            for member, value in vars(thing).items():
                if not member.startswith("_") and (text := inspect.getdoc(value)):
                    parts.append(f"### {name}.{member}\n\n{described(member, value, text)}")
    return "\n".join(parts)


def limits_page(source: str) -> str:
    """Return a page with a table for each section of the module: name, value and comment."""
    parts = [
        "# Limits\n\nThis page is made from `outlast/model/limits.py`. Names end in their unit:"
    ]
    parts[0] += " `_s` is seconds.\n"
    constants = source.partition("\nassert ")[0]
    for section in re.split(r"^# --- ", constants, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        rows = "\n".join(limit_rows(body))
        parts.append(f"## {title.rstrip('- ').capitalize()}\n\n| limit | value | what it is |")
        parts.append(f"|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def limit_rows(section: str) -> Iterator[str]:
    """Yield a row for each constant. Its comment stands above it, behind it, or both."""
    comment: list[str] = []
    for line in section.splitlines():
        if line.startswith("# "):
            comment.append(line[2:])
        elif found := re.match(r"([A-Z][A-Z_, ]*[A-Z]) = ([^#]*)(?:# (.*))?$", line):
            said = " ".join([*comment, found[3] or ""]).strip().replace("|", "\\|")
            yield f"| `{found[1]}` | `{found[2].strip()}` | {said[:1].upper()}{said[1:]} |"
            comment = []


def described(name: str, thing: object, text: str | None = None) -> str:
    """Return the signature and the docstring of one thing, as Markdown."""
    text = text or inspect.getdoc(thing) or ""
    signature = ""
    if callable(thing):
        with contextlib.suppress(TypeError, ValueError):  # a class that has none
            shown = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(thing)))
            signature = f"```python\n{name}{shown}\n```\n\n"
    return f"{signature}{docstring_as_markdown(text)}\n"


def docstring_as_markdown(text: str) -> str:
    """Return a docstring with its aligned tables kept as they stand."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```text\n{paragraph}\n```"
        if re.search(r"^\s*\S+.*? {2,}\S", paragraph, re.MULTILINE) and "`" not in paragraph[:1]
        else paragraph
        for paragraph in paragraphs
    )


if __name__ == "__main__":
    sys.exit(main())
