"""Stacks as py-spy and faulthandler print them, one finding for each main or autograd thread.

py-spy:       Process 1234: python train.py / Thread 1234 (active): "MainThread" / "    synchronize
              (torch/cuda/__init__.py:688)"
faulthandler: Thread 0x00007f.. (most recent call first): / '  File "train.py", line 12 in step'
Innermost frames come first in both. Lines may carry a launcher's label.

The innermost known frame tells what a stack is doing: waiting for peers, loading or storing, or
working. A rank that waits is collateral. Only a frame of a library that talks to peers proves that:
a function of the user's own that is called `wait_for_shard` may sleep, poll or hold a lock. It
counts as working, unless most ranks stand in it (`together.py`).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outlast.diagnose.findings import Finding

NEEDLES = (
    b"    all_reduce",
    b"    broadcast",
    b"    all_gather",
    b"    reduce_scatter",
    b"    barrier",
    b"    synchronize",
    b"    recv",
    b"    send",
    b"(most recent call first)",
    b"thread 0x",
    b'mainthread"',
    b"(idle)",
    b"(active",
    b"process ",
)
FRAMES_MAX = 120
HEADERS_MAX = 4096
# the innermost function alone, as people list them
_BARE = re.compile(r"^\s{2,12}(\w{4,40})\s{0,4}$")
_PROCESS = re.compile(r"^(.{0,60}?)Process (\d{1,9}): (.{0,200})$")
_SPY = re.compile(
    r"^(.{0,60}?)Thread (0x[0-9a-fA-F]{1,16}|\d{1,16}) \((idle|active)[\w+ ]{0,20}\)(?::"
    r" \"?([^\"]{0,80}))?"
)
_FAULT = re.compile(
    r"^(.{0,60}?)(Current thread|Thread) (0x[0-9a-fA-F]{1,16})(?: \[([^\]]{1,40})\])? ?\(most"
    r" recent call first\)"
)
_SPY_FRAME = re.compile(
    r"^\s{2,8}([\w<>.\[\]~$: *&,-]{1,160}?) \(([^()]{1,300}?)(?::(\d{1,7}))?\)\s*$"
)
_FAULT_FRAME = re.compile(r'^\s{1,4}File "([^"]{1,400})", line (\d{1,7}|\?\?\?) in (\S{1,160})')
_RANK = re.compile(r"--local[_-]rank[= ](\d{1,5})|\brank[= ](\d{1,6})")
# people write it above the stacks of one process, in a file of many
_HEADING = re.compile(
    r"^(?:[\s#=*>|\[(-]{0,12}|[\s#*>|-]{0,4}[=#*-]{2,40}.{1,80}?[^\w-])(?:global[ _-]?)?"
    r"rank[ _:=#-]{0,3}(\d{1,6})\b(?![.\d]).{0,80}$",
    re.IGNORECASE,
)
HEADING_LINES = 3  # it stands so near above the line that names the process

WAITING = re.compile(
    r"^(?:_?all_?reduce\w*|_?all_?gather\w*|_?reduce_scatter\w*|broadcast\w*|barrier\w*"
    r"|monitored_barrier|_?all_to_all\w*|wait\w*"
    r"|_wait\w*|synchronize|stream_?synchronize|recv\w*|send\w*|irecv|isend"
    r"|_communicate\w*|batch_isend_irecv"
    r"|_store_based_barrier|store_based_barrier|rendezvous|item|_local_scalar_dense|reduce"
    r"|gather\w*|scatter\w*|_?exchange\w*|nccl\w*"
    r"|cudastreamsynchronize|cudaeventsynchronize|cudadevicesynchronize"
    r"|get_global_grad_norm|clip_grad_norm\w*|_engine_run_backward"
    r"|run_backward"
    r"|init_process_group|destroy_process_group|_new_process_group_helper|get_loss_scale"
    r"|_has_inf_or_nan|has_overflow\w*)$",
    re.IGNORECASE,
)

LOADING = re.compile(
    r"^(?:__next__|__getitem__|__getitems__|read|readinto|readline\w*|_read\w*|open"
    r"|_open\w*|load|loads|_load\w*|torch_load"
    r"|default_collate|save|_save\w*|torch_save|write|_write\w*|fsync|flush|stat|exists"
    r"|isfile|listdir|scandir|glob|mkdir|makedirs"
    r"|copy\w*|rmtree"
    r"|download\w*|urlopen|connect|memmap|mmap|get_batch|next_batch)$",
    re.IGNORECASE,
)
# packages that read and write files, by the folder that a frame names
_IO_PACKAGES = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "torchdata",
        "utils",
        "_utils",
        "numpy",
        "lib",
        "pandas",
        "io",
        "h5py",
        "_hl",
        "PIL",
        "cv2",
        "datasets",
        "fsspec",
        "implementations",
        "s3fs",
        "gcsfs",
        "webdataset",
        "lmdb",
        "safetensors",
        "pyarrow",
        "parquet",
        "requests",
        "urllib3",
        "aiohttp",
        "httpx",
        "botocore",
        "boto3",
        "huggingface_hub",
        "zarr",
        "tensorstore",
        "streaming",
    ]
)
# Packages whose functions of such names wait for peers. Their paths are kept from here on.
_PEER_PACKAGES = frozenset(
    [
        "torch",
        "torch_xla",
        "torchft",
        "torchtitan",
        "torchrec",
        "nccl",
        "cupy",
        "mpi4py",
        "horovod",
        "byteps",
        "bagua",
        "apex",
        "megatron",
        "deepspeed",
        "fairscale",
        "colossalai",
        "accelerate",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "composer",
        "nemo",
        "transformer_engine",
        "transformers",
        "vllm",
        "sglang",
    ]
)
# files of theirs that people quote without a folder
_PEER_FILES = frozenset(["distributed_c10d.py", "c10d.py", "c10d_logger.py"])
_FETCH = re.compile(r"^fetch \(.{0,20}_utils/fetch\.py")
# a rank waits there for its peers' answers
_OWN_WAIT = re.compile(
    r"outlast/runtime/worker/"
    r"(?:shared_rows|script_position|shared_vote|vote|vote_payload|membership|session)\.py"
)
# Python's own sockets reach servers, and no peers: torch and NCCL have sockets of their own
_SOCKET = re.compile(r"\((?:python3[\d.]{0,3}/)?(?:socket|ssl)\.py:|\(http/client\.py:")
_CHILD = re.compile(r"\((?:python3[\d.]{0,3}/)?subprocess\.py:")  # it waits for a program
_LOADER = re.compile(r"^(?:_try_get_data|_get_data|_next_data)$")
_QUIET = re.compile(
    r"^(?:acquire|select|poll|epoll|_poll|accept|get|_bootstrap\w*|run|__call__|_call_impl"
    r"|_wrapped_call_impl|wrapper|inner"
    r"|decorate_context|_fn|<lambda>|__enter__|__exit__|join|_wait_for_tstate_lock"
    r"|backward|forward|apply|step|train_step)$",
    re.IGNORECASE,
)
_STARTED = re.compile(r"^_bootstrap \(.{0,40}threading\.py")
_POOL = re.compile(
    r"multiprocessing/(?:connection|queues|popen)|selectors\.py|queue\.py|threading\.py|concurrent/"
)


@dataclass(frozen=True, slots=True)
class Stack(Finding):
    """A stack of one thread: `frames` are "function (file:line)", innermost first.

    `thread` and `process` are as they were printed. It stands `together` with most ranks in a
    function of the user's own that is called as one that waits.
    """

    frames: tuple[str, ...] = ()
    thread: str = ""
    process: str = ""
    together: bool = False


@dataclass(slots=True)
class Thread:
    """A stack that is being read.

    It begins at `line`, was printed as `text`, and each of its lines has a label of `width`
    characters.
    """

    line: int
    text: str
    thread: str
    process: str
    rank: int | None
    width: int
    frames: list[str]


class StackReader:
    """A reader that returns threads as they end.

    Headers that follow each other share the stack below them: people list equal stacks that way.
    """

    def __init__(self) -> None:
        self._process = ""
        self._rank: int | None = None
        self._threads: list[Thread] = []  # those whose frames are being read
        self._frames: list[str] = []

    @property
    def active(self) -> bool:
        return bool(self._threads)

    def feed(self, line: int, text: str, before: Sequence[str] = ()) -> list[Thread]:
        """Return the threads that this line ends.

        `before` are the lines above it: a heading there may name the rank of a process.
        """
        process = _PROCESS.match(text)
        if process:
            done = self.end()
            self._process = process[2]
            found = _RANK.search(process[3])
            self._rank = _headed(before) if found is None else int(found[1] or found[2])
            return done
        spy, fault = _SPY.match(text), _FAULT.match(text)
        head = spy or fault
        if head is not None:
            done = self.end() if self._frames or len(self._threads) >= HEADERS_MAX else []
            name = (spy[4] or spy[2]) if spy else (fault[4] or fault[2] if fault else "")
            number = spy[2] if spy else fault[3] if fault else ""
            self._threads.append(
                Thread(
                    line,
                    text,
                    name or "",
                    self._process or number,
                    self._rank,
                    len(head[1]),
                    self._frames,
                )
            )
            return done
        bare = _BARE.match(text)
        if bare and not self._threads:
            return (
                [Thread(line, text, "MainThread", f"line {line}", None, 0, [f"{bare[1]} (?)"])]
                if WAITING.match(bare[1])
                else []
            )
        return self._frame(text)

    def _frame(self, text: str) -> list[Thread]:
        if not self._threads:
            return []
        body = text[self._threads[0].width :]
        spy, fault = _SPY_FRAME.match(body), _FAULT_FRAME.match(body)
        if fault:
            self._frames.append(f"{fault[3]} ({short(fault[1])}:{fault[2]})")
        elif spy:
            self._frames.append(f"{spy[1]} ({short(spy[2])}:{spy[3] or '?'})")
        elif not body.startswith(("      ", "\t")) or len(self._frames) > FRAMES_MAX:
            # py-spy prints locals further in
            return self.end()
        return []

    def end(self) -> list[Thread]:
        done, self._threads, self._frames = (self._threads if self._frames else []), [], []
        return done


def _headed(before: Sequence[str]) -> int | None:
    """Return the rank in a heading just above, and below any stack of another process."""
    for text in reversed(before[-HEADING_LINES:]):
        if found := _HEADING.match(text):
            return int(found[1])
        if _SPY_FRAME.match(text) or _PROCESS.match(text):
            return None
    return None


def short(path: str) -> str:
    """Return the last two parts of a path, because what is before them differs between machines.

    Of outlast's own files, and those of packages that talk to peers, all parts from the package on
    are kept: it is known what waits in them.
    """
    parts = path.replace("\\", "/").split("/")
    own = next(
        (at for at in range(len(parts) - 2) if parts[at : at + 2] == ["outlast", "runtime"]),
        len(parts) - 2,
    )
    return "/".join(parts[max(min(own, _package_at(parts)), 0) :])


def _package_at(parts: Sequence[str]) -> int:
    """Return where a package that talks to peers begins in a path; its end where none does.

    A folder of the user's may be called like one, so a script that lies in it is not its file.
    """
    installed = [at for at, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
    if installed:
        at = installed[-1] + 1
        return at if at < len(parts) and parts[at] in _PEER_PACKAGES else len(parts)
    if parts[0] in _PEER_PACKAGES:
        return 0
    return next(
        (at for at in range(len(parts) - 3, -1, -1) if parts[at] in _PEER_PACKAGES), len(parts)
    )


def function_of(frame: str) -> str:
    return frame.partition(" (")[0].rsplit(".", 1)[-1].rsplit("::", 1)[-1]


def newest_of_ranks(findings: Iterable[Finding]) -> dict[int, list[Stack]]:
    """Return the newest stack of each thread, for each rank.

    Stacks whose rank is not known are left out.
    """
    newest = {
        (one.rank, one.process, one.thread): one for one in findings if isinstance(one, Stack)
    }
    by_rank: dict[int, list[Stack]] = {}
    for one in newest.values():
        if one.rank is not None:
            by_rank.setdefault(one.rank, []).append(one)
    return by_rank


def is_library(frame: str) -> bool:
    """Return True for a frame of the standard library or of a package that reads and writes files.

    A function of the user's own is often called `load` or `read`, which says nothing about storage.
    """
    parts = frame.partition(" (")[2].partition(":")[0].split("/")
    head = parts[0].removesuffix(".py")
    return (
        len(parts) > 1 and (head.startswith("python3") or head in _IO_PACKAGES)
    ) or head in sys.stdlib_module_names


def is_of_peers(frame: str) -> bool:
    """Return True for a frame of a library that talks to peers, and for one of native code.

    A name without a file may be anything. People list the innermost functions that way.
    """
    path = frame.partition(" (")[2].rpartition(":")[0] or frame.partition(" (")[2].rstrip(")")
    if not path.endswith(".py"):
        return not path.startswith("<")  # a console's or a notebook's code is the user's
    return path.partition("/")[0] in _PEER_PACKAGES or path in _PEER_FILES


def activity(stack: Stack) -> tuple[str, str]:
    """Return `doing_what` of a stack, whose peers may show that it waits."""
    kind, name = doing_what(stack.frames)
    return ("waiting" if stack.together else kind), name


def doing(frames: tuple[str, ...] | list[str]) -> str:
    """Return what a stack is doing.

    "waiting" for peers, "loader" (waiting for its loader's workers), "loading" (files), "working",
    or "idle" (the threads of a pool, which say nothing).
    """
    return doing_what(frames)[0]


def doing_what(frames: tuple[str, ...] | list[str]) -> tuple[str, str]:
    """Return what a stack is doing, and the function that shows it; "" for one that is idle."""
    for place, frame in enumerate(frames[:12]):
        name = function_of(frame)
        if "outlast/runtime/" in frame or "outlast/engine/" in frame:
            if _OWN_WAIT.search(frame) and name != "_listen":
                return "waiting", name
            continue
        if _POOL.search(frame) and place + 1 < len(frames):
            continue
        if _LOADER.match(name):
            return "loader", name
        if _FETCH.search(frame) or (LOADING.match(name) and is_library(frame)):
            return "loading", name
        if _CHILD.search(frame):
            return "working", name
        if _SOCKET.search(frame) and (WAITING.match(name) or LOADING.match(name)):
            return "loading", name
        if _QUIET.match(name):
            continue
        return ("waiting" if WAITING.match(name) and is_of_peers(frame) else "working"), name
    return "idle", ""


def own_wait(frames: tuple[str, ...] | list[str]) -> str:
    """Return the function of the user's own in which a stack is, if it is called as one that waits.

    Such a function often waits for peers in native code, which shows no frame. "" for all others.
    """
    kind, name = doing_what(frames)
    if kind != "working" or not WAITING.match(name):
        return ""
    return next((frame for frame in frames if function_of(frame) == name), "").rpartition(":")[0]


def is_main(one: Thread) -> bool:
    """Return True for main threads and those of autograd.

    A dump of faulthandler names no threads. One that `threading` has started begins in its
    `_bootstrap`.
    """
    if one.frames and _STARTED.search(one.frames[-1]) and not one.thread.startswith("MainThread"):
        return False
    if one.thread.startswith(("MainThread", "Current thread")) or "autograd" in one.thread:
        return True
    return one.thread in ("Thread", "") or (
        one.thread.startswith(("0x", "1", "2")) and any("<module>" in frame for frame in one.frames)
    )
