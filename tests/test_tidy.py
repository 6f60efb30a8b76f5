"""Style that a test can hold: sizes, clocks and files in their place, documented options, honest
excepts.

Each rule names the file and the line it is broken at. Where a rule makes code worse, `# tidy:
<reason>` on the line lifts it.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.syntax import nodes_of

HOME = Path(__file__).parents[1]
ROOT = HOME / "src" / "outlast"
SRC_LINES_MAX, TEST_LINES_MAX, FUNCTION_LINES_MAX = 600, 800, 70
# Files and functions that ruff format has pushed over a wall. Each is to be split, and none is to
# be added.
TO_SPLIT_FILES: set[str] = set()
TO_SPLIT_FUNCTIONS: set[tuple[str, str]] = set()

SOURCES = sorted(ROOT.rglob("*.py"))
SCRIPTS = sorted(
    path for folder in ("examples", "benchmarks", "tools") for path in (HOME / folder).rglob("*.py")
)
TESTS = sorted((HOME / "tests").rglob("*.py"))

# Modules that are a clock, a source of randomness, a socket, a thread, a process or a file
WORLD = {
    *(
        "asyncio",
        "concurrent",
        "ctypes",
        "fcntl",
        "glob",
        "mmap",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
    ),
    *(
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ),
}
WORLD_CALLS = {"open", "input", "breakpoint"}
WORLD_ATTRIBUTES = {
    *("now", "utcnow", "today"),  # datetime's clocks
    *(
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "open",
        "mkdir",
        "unlink",
        "iterdir",
        "rglob",
        "touch",
        "rmdir",
        "rename",
    ),
}
# layer -> what it may have of the world after all
GRANTED: dict[str, set[str]] = {
    "app": {"os", "signal"},  # environment and Ctrl-C; files only through runtime
    "sim": {"random"},  # random.Random(seed), never the module's own state
    "planner": {"random"},
}


def broken(path: Path, found: Iterator[tuple[int, str]]) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        f"{path.relative_to(HOME)}:{line}: {what}"
        for line, what in found
        if "# tidy:" not in lines[line - 1]
    ]


def layer_of(path: Path) -> str:
    inside = path.relative_to(ROOT).parts
    return inside[0] if len(inside) > 1 else ""


# --- sizes ----------------------------------------------------------------------------------------


def test_no_file_has_two_subjects() -> None:
    """A file that passes the wall has grown a second subject: 600 lines for the product, 800 for
    tests.
    """
    sizes = {path: len(path.read_text().splitlines()) for path in SOURCES + SCRIPTS + TESTS}
    assert not [
        f"{path.relative_to(HOME)}: {size} lines"
        for path, size in sizes.items()
        if size > (TEST_LINES_MAX if path in TESTS else SRC_LINES_MAX)
        and str(path.relative_to(HOME)) not in TO_SPLIT_FILES
    ]


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(HOME)}:{node.lineno}: {node.name} has {size} lines"
        for path in SOURCES + SCRIPTS + TESTS
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
        and (str(path.relative_to(HOME)), node.name) not in TO_SPLIT_FUNCTIONS
    ]
    assert not long, "\n".join(long)


# --- the world stays in runtime/ ------------------------------------------------------------------


def touches_of_the_world(source: str, granted: set[str]) -> Iterator[tuple[int, str]]:
    for node in nodes_of(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            yield from (
                (node.lineno, f"imports {name}")
                for name in names
                if name.split(".")[0] in WORLD - granted
            )
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in WORLD_CALLS
        ):
            yield node.lineno, f"calls {node.func.id}()"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WORLD_ATTRIBUTES
            and not is_a_class(node.func.value)
        ):
            yield node.lineno, f"calls .{node.func.attr}()"
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in {("np", "random"), ("numpy", "random")}
        ):
            yield node.lineno, "uses numpy's global random state"
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "random"
            and node.attr != "Random"
        ):
            yield node.lineno, f"uses the global random.{node.attr}"


def is_a_class(node: ast.expr) -> bool:
    """`Ledger.open(...)`: a named constructor of ours, whose module is judged by itself.

    `Path.open` and `datetime.now` are not meant.
    """
    return isinstance(node, ast.Name) and node.id[:1].isupper() and node.id != "Path"


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if layer_of(path) != "runtime"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_clocks_files_sockets_and_chance_live_in_runtime_only(path: Path) -> None:
    faults = broken(
        path, touches_of_the_world(path.read_text(), GRANTED.get(layer_of(path), set()))
    )
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import choice",
        "open('x')",
        "datetime.now()",
        "import os.path",
        "path.read_text()",
        "np.random.rand()",
    ],
)
def test_a_touch_of_the_world_is_seen(source: str) -> None:
    assert list(touches_of_the_world(source, set()))


# --- what reads badly -----------------------------------------------------------------------------


def bad_habits(source: str, *, may_print: bool) -> Iterator[tuple[int, str]]:
    lines = source.splitlines()
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [
                *node.args.defaults,
                *(default for default in node.args.kw_defaults if default),
            ]
            yield from (
                (default.lineno, "a mutable default")
                for default in defaults
                if isinstance(default, ast.List | ast.Dict | ast.Set)
            )
        elif (
            isinstance(node, ast.ExceptHandler)
            and is_broad(node)
            and "# boundary:" not in lines[node.lineno - 1]
        ):
            yield (
                node.lineno,
                (
                    "a broad except that neither raises again at its end nor names its `# boundary:"
                    " <which>`"
                ),
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if (
                node.func.id == "print"
                and not may_print
                and not any(word.arg == "file" for word in node.keywords)
            ):
                yield (
                    node.lineno,
                    (
                        "prints; only app/ and scripts speak to people (a line with file= says to"
                        " whom)"
                    ),
                )
            if node.func.id in {"eval", "exec"}:
                yield node.lineno, f"calls {node.func.id}()"
        elif isinstance(node, ast.Import | ast.ImportFrom) and "pickle" in {
            alias.name for alias in node.names
        }:
            yield node.lineno, "imports pickle; nothing is ever unpickled"


def is_broad(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False  # it cleans up and hands on
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"})
        for kind in kinds
    )


@pytest.mark.parametrize("path", SOURCES + SCRIPTS, ids=lambda path: str(path.relative_to(HOME)))
def test_no_bad_habits(path: Path) -> None:
    may_print = path in SCRIPTS or layer_of(path) == "app"
    faults = broken(path, bad_habits(path.read_text(), may_print=may_print))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x=[]): ...",
        "try: f()\nexcept Exception: g()",
        "try: f()\nexcept: g()",
        "print('x')",
        "import pickle",
        "eval('1')",
    ],
)
def test_a_bad_habit_is_seen(source: str) -> None:
    assert list(bad_habits(source, may_print=False))


# --- what is said to people -----------------------------------------------------------------------


def options_of(source: str) -> Iterator[tuple[int, str]]:
    """Long options given to any `add_argument`, and not hidden with help=SUPPRESS."""
    for node in nodes_of(source):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            hidden = any(
                word.arg == "help" and "SUPPRESS" in ast.unparse(word.value)
                for word in node.keywords
            )
            names = [
                arg.value
                for arg in node.args
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            ]
            yield from (
                (node.lineno, name) for name in names if name.startswith("--") and not hidden
            )


def test_every_option_is_documented() -> None:
    """Method: each `add_argument("--x", ...)` of the product, looked up in README.md and docs/."""
    said = "\n".join(
        path.read_text() for path in [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
    )
    # torchrun's habit: --spare_kind is taken for --spare-kind too
    words = set(re.findall(r"--[a-z][a-z0-9-]*", said))
    missing = [
        f"{path.relative_to(HOME)}:{line}: {name} stands neither in README.md nor in docs/"
        for path in SOURCES
        for line, name in options_of(path.read_text())
        if name.replace("_", "-") not in words
    ]
    assert not missing, "\n".join(missing)


ROW = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*) {2,}\S", re.MULTILINE)
NAMED = re.compile(r"`([a-z]\w*)`:")


def explained_in_vain(source: str) -> Iterator[tuple[int, str]]:
    """Fields that the docstring of a dataclass explains, in rows or as `name`:, and that are none.

    Those with a base class are left out: their docstring may explain what they inherit.
    """
    for node in nodes_of(source):
        if not isinstance(node, ast.ClassDef) or node.bases:
            continue
        if not any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            continue
        text = ast.get_docstring(node) or ""
        known = {one.target.id for one in node.body if is_a_field(one)}
        known |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        explained = [name for row in ROW.findall(text) for name in row.split(", ")]
        for name in (*explained, *NAMED.findall(text)):
            if name not in known:
                yield node.lineno, f"{node.name} explains {name}, which it has not"


def is_a_field(node: ast.stmt) -> typing.TypeGuard[typing.Any]:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_explains_a_field_that_does_not_exist(path: Path) -> None:
    faults = broken(path, explained_in_vain(path.read_text()))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("row", ["gone  what it was", "here, gone  two of them", "`gone`: what"])
def test_a_field_that_is_explained_in_vain_is_seen(row: str) -> None:
    source = f'@dataclass\nclass It:\n    """It.\n\n    {row}\n    """\n\n    here: int\n'
    assert [what for _, what in explained_in_vain(source)] == ["It explains gone, which it has not"]


def cuts_of_texts(source: str) -> Iterator[tuple[int, str]]:
    """Slices that cut a text which somebody is to read, as in `str(x)[:80]` or `f"{x[:80]}"`."""
    nodes = nodes_of(source)
    inserted = [node.value for node in nodes if isinstance(node, ast.FormattedValue)]
    for node in nodes:
        if not is_a_cut(node):
            continue
        text = node.value
        is_text = isinstance(text, ast.JoinedStr) or (
            isinstance(text, ast.Call)
            and (
                (isinstance(text.func, ast.Name) and text.func.id == "str")
                or (isinstance(text.func, ast.Attribute) and text.func.attr in TEXT_CALLS)
            )
        )
        if is_text or node in inserted:
            yield node.lineno, f"{ast.unparse(node)}: cut_at_word ends behind a word"


TEXT_CALLS = {"dumps", "join", "rstrip", "strip", "sub"}


def is_a_cut(node: ast.AST) -> typing.TypeGuard[ast.Subscript]:
    """`x[:N]`, with N a number of more than a few letters or a constant's name."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    end = node.slice.upper
    if node.slice.lower is not None or end is None:
        return False
    if isinstance(end, ast.Constant):
        return isinstance(end.value, int) and end.value >= 10
    return isinstance(end, ast.Name) and end.id.isupper()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_is_cut_within_a_word(path: Path) -> None:
    """What people read is cut by `cut_at_word` of model/texts.py, and by nothing else."""
    faults = broken(path, cuts_of_texts(path.read_text()))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source", ["str(x)[:80]", "f'{x}'[:MOST]", "f'it is {x[:80]!r}'", "x.strip()[:MOST]"]
)
def test_a_text_that_is_cut_anyhow_is_seen(source: str) -> None:
    assert list(cuts_of_texts(source))


LOCAL_PATH = re.compile(r"(?<![\w./~})-])/(?:work|home|Users|root|opt|mnt)/[\w.]")


def test_nothing_names_a_path_of_one_machine() -> None:
    """Method: every tracked text file.

    Paths below home folders, mounts and the like exist on one machine only.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, capture_output=True, timeout=30)
    if listed.returncode:
        pytest.skip("not a git checkout")
    faults: list[str] = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = HOME / name
        if not path.is_file() or path == Path(__file__) or b"\0" in path.read_bytes()[:1024]:
            continue
        faults += [
            f"{name}:{at}: {line.strip()[:100]}"
            for at, line in enumerate(path.read_text().splitlines(), 1)
            if LOCAL_PATH.search(line)
        ]
    assert not faults, "\n".join(faults)


# --- the shape of classes ------------------------------------------------------------------------

FIELDS_MAX = 10
# Classes that change more than ten fields, with the reason for each. At most ten in the product.
MANY_FIELDS: dict[tuple[str, str], str] = {
    ("src/outlast/diagnose/logs/lines.py", "LineReader"): (
        "it reads each line once, and must be fast: parts would cost a call for each line"
    ),
    ("src/outlast/engine/protocol/worker.py", "WorkerMachine"): (
        "what a worker has said so far, a field for each message; it is compared as a whole"
    ),
    ("src/outlast/runtime/agent/forks.py", "ForkQueue"): (
        "it owns each descriptor of the talk with the zygote, and closes them together"
    ),
    ("src/outlast/runtime/agent/logs.py", "_Pipe"): "one pipe: its ends, its file, its counters",
    ("src/outlast/runtime/agent/evidence.py", "_Process"): (
        "a record that is filled while a process is given up, and then written as JSON"
    ),
    ("src/outlast/runtime/agent/specs.py", "Specs"): (
        "what each process is started with, known at the start and filled in by the store"
    ),
    ("src/outlast/runtime/evidence/unpickling.py", "_ReaderPool"): (
        "limits and counters of the processes that unpickle, which end together"
    ),
    ("src/outlast/model/beacon.py", "Beacon"): "a page of shared memory, field by field",
    ("src/outlast/sim/world/processes.py", "SimulatedProcess"): (
        "all that is so of one simulated process: it is copied as a whole when ranks become one"
    ),
}


def classes_of(paths: Iterable[Path]) -> list[tuple[Path, ast.ClassDef]]:
    """Return every class of the files, nested ones included."""
    return [
        (path, node)
        for path in paths
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.ClassDef)
    ]


def own_fields(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class: those that it declares, and those that it sets on `self`."""
    declared = {
        one.target.id
        for one in node.body
        if is_a_field(one) and "ClassVar" not in ast.unparse(one.annotation)
    }
    is_dataclass = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    stored = {
        one.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in ast.walk(method)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    return stored | declared if is_dataclass else stored


def base_names(node: ast.ClassDef) -> list[str]:
    """Return the names of the base classes, without their modules and type arguments."""
    return [ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases]


class Classes:
    """The classes of the product, looked up by name: a base class may be in another file."""

    def __init__(self, found: list[tuple[Path, ast.ClassDef]]) -> None:
        self.by_name: dict[str, list[ast.ClassDef]] = {}
        for _, node in found:
            self.by_name.setdefault(node.name, []).append(node)

    def bases(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the base classes of `node` that belong to the product."""
        names = [name for name in base_names(node) if name != node.name]
        return [base for name in names for base in self.by_name.get(name, [])]

    def fields(self, node: ast.ClassDef) -> set[str]:
        """Return the fields of `node`, those of its base classes included."""
        return own_fields(node).union(*(self.fields(base) for base in self.bases(node)))

    def depth(self, node: ast.ClassDef) -> int:
        """Return how many levels of inheritance `node` has; 1: it has no base in the product.

        A protocol has no state and no code, so one that extends another counts as one level.
        """
        if "Protocol" in base_names(node):
            return 1
        return 1 + max((self.depth(base) for base in self.bases(node)), default=0)

    def is_error(self, node: ast.ClassDef) -> bool:
        """Return True if `node` is an exception, directly or by its bases."""
        builtin = any(name.endswith(("Error", "Exception")) for name in base_names(node))
        return builtin or any(self.is_error(base) for base in self.bases(node))


def is_frozen(node: ast.ClassDef) -> bool:
    """Return True for records and messages, whose fields never change."""
    frozen = any("frozen=True" in ast.unparse(one) for one in node.decorator_list)
    return frozen or "NamedTuple" in base_names(node)


@functools.cache
def product() -> tuple[list[tuple[Path, ast.ClassDef]], Classes]:
    """The classes of the product, in order and by name."""
    found = classes_of(SOURCES)
    return found, Classes(found)


def test_a_class_that_changes_has_at_most_ten_fields() -> None:
    """A component owns at most ten fields, inherited ones included; records are exempt.

    Method: the fields are those that a dataclass declares and those that methods set on `self`.
    """
    found, classes = product()
    many = {
        (str(path.relative_to(HOME)), node.name): len(classes.fields(node))
        for path, node in found
        if not is_frozen(node) and len(classes.fields(node)) > FIELDS_MAX
    }
    assert not [
        f"{path}: {name} has {count} fields"
        for (path, name), count in many.items()
        if (path, name) not in MANY_FIELDS
    ]
    done = set(MANY_FIELDS) - set(many)
    assert not done, f"these hold the rule now; take them out of the list: {sorted(done)}"
    assert len(MANY_FIELDS) <= 10
    assert all(MANY_FIELDS.values()), "each exception has a reason"


def test_inheritance_has_at_most_two_levels() -> None:
    """The error tree is exempt: callers catch its errors at any level."""
    found, classes = product()
    assert not [
        f"{path.relative_to(HOME)}:{node.lineno}: {node.name} has {classes.depth(node)} levels"
        for path, node in found
        if classes.depth(node) > 2 and not classes.is_error(node)
    ]


SHAPES = """
class Base:
    def __init__(self): self.a = self.b = self.c = self.d = self.e = self.f = 0
class Middle(Base):
    def set(self): self.g, (self.h, self.i) = 0, (0, 0)
class Leaf(Middle):
    def set(self): self.j += 1; self.k: int = 0
"""


def test_inherited_fields_and_levels_are_counted() -> None:
    """The check checks: a base class hides no field, and a chain is seen."""
    nodes = [node for node in ast.parse(SHAPES).body if isinstance(node, ast.ClassDef)]
    classes = Classes([(Path("x.py"), node) for node in nodes])
    assert [len(classes.fields(node)) for node in nodes] == [6, 9, 11]
    assert [classes.depth(node) for node in nodes] == [1, 2, 3]


# --- names and dispatch --------------------------------------------------------------------------

# Module names that occur more than once. Their folders tell them apart; none may be added.
TWICE = {
    "checkpoints",
    "decisions",
    "devices",
    "explain",
    "groups",
    "helpers",
    "host",
    "lines",
    "membership",
    "options",
    "plan",
    "policy",
    "processes",
    "progress",
    "recorded",
    "run",
    "saves",
    "state",
    "store",
    "strikes",
    "tree",
    "words",
}


def test_no_two_modules_share_a_name() -> None:
    """A reader who looks for a module by its name finds one, except for those in the list."""
    names = [path.stem for path in SOURCES if not path.stem.startswith("__")]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice - TWICE, "these names occur more than once"
    assert not TWICE - twice, "these names occur once now; take them out of the list"


def test_no_two_classes_of_the_product_share_a_name() -> None:
    """A reader who looks for a class by its name finds one. Private ones stay in their file."""
    places: dict[str, list[str]] = {}
    for path, node in product()[0]:
        if not node.name.startswith("_"):
            places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, "give all but one of these classes another name"


def test_every_public_class_says_what_it_is() -> None:
    """A class with a public name has a docstring."""
    silent = [
        f"{path.relative_to(HOME)}:{node.lineno}: {node.name}"
        for path, node in product()[0]
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent, "\n".join(silent)


def class_names_tested(source: str) -> Iterator[tuple[int, str]]:
    """Comparisons with the name of a class, as in `type(x).__name__ == "Hello"`."""
    for node in nodes_of(source):
        if isinstance(node, ast.Compare):
            tested: list[ast.expr] = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            tested = [node.subject]
        else:
            continue
        if any(isinstance(one, ast.Attribute) and one.attr == "__name__" for one in tested):
            yield node.lineno, "tests the name of a class; dispatch by match or isinstance"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_dispatched_by_the_name_of_a_class(path: Path) -> None:
    """A misspelt class name in a string is silent; a misspelt class is an error."""
    faults = broken(path, class_names_tested(path.read_text()))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    ["type(x).__name__ == 'A'", "x.__class__.__name__ in ('A',)", "match type(x).__name__: ..."],
)
def test_a_test_of_a_class_name_is_seen(source: str) -> None:
    source = source.replace(": ...", ":\n    case 'A': ...")
    assert list(class_names_tested(source))


# --- width ---------------------------------------------------------------------------------------

COLUMNS_MAX = 100
# A pragma has to stand on its line, together with its reason: it does not count, as in ruff.
PRAGMA = re.compile(r"\s*# (type: ignore|noqa|tidy:|boundary:).*")


def test_a_layout_of_its_own_has_a_reason_beside_it() -> None:
    """`ruff format` decides the layout. Where a line is kept from it, the line says why."""
    bare = [
        f"{path.relative_to(HOME)}:{number}"
        for path in SOURCES + SCRIPTS + TESTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# fmt: " + "skip")
    ]
    assert not bare


def test_lines_end_at_100_columns() -> None:
    """Method: every tracked Python file; what a pragma says does not count."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=HOME, capture_output=True, timeout=30
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name]
    wide = [
        f"{name}:{at}: {len(line)} columns"
        for name in names
        if (HOME / name).is_file()
        for at, line in enumerate((HOME / name).read_text().splitlines(), 1)
        if len(PRAGMA.sub("", line)) > COLUMNS_MAX
    ]
    assert not wide, "\n".join(wide)


TEST_NAME_MAX = 70


def test_the_name_of_a_test_has_at_most_70_characters() -> None:
    """The name is the rule; the story belongs into the docstring."""
    long = [
        f"{path.relative_to(HOME)}:{node.lineno}: {node.name}"
        for path in TESTS
        for node in nodes_of(path.read_text())
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > TEST_NAME_MAX
    ]
    assert not long, "\n".join(long)
