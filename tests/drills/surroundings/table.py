"""A table of everything that surrounds a run, of what can happen to it, and of the moments at which
it happens. This file is only data.

A row says what happens to which thing, how the run reacts, and what is kept. `act` names the
function in acts.py that does it. A cell is a row at one moment. Where the moment does not matter,
the row says how many moments are drawn by SEED. LEFT_OUT lists what cannot be tried here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

SEED = 22


class Moment(str, Enum):
    START = "start"  # the run's folder is made, and no step is committed
    TRAINING = "training"
    REGROUP = "regroup"  # right after a rank was killed
    CHECKPOINT = "checkpoint"  # a checkpoint is being written
    END = "end"  # the last steps, and the code after them


S, T, G, C, E = Moment
EACH = (S, T, G, C, E)


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that can happen to the surroundings of a run.

    thing, happens   a part of what surrounds a run, and what happens to it
    act              the name of the function in acts.py that does it
    moments          the moments that are tried; `drawn` says how many of them are drawn by seed
    back_after_s     the thing comes back after this time; None: never
    codes            the exit codes that are right; 0: it goes on training, with equal weights
    said             must be on the console (a regular expression)
    sees             for the page: what people see; "": nothing
    kept             for the page: what is kept if the run ends
    resumes          the run ends, and `--resume` brings it to the same weights
    setting          the name of the setting in settings.py in which the run is started
    does             what rank 1 does by itself in step 10 (scripts/strikes.py, misdeeds.py)
    within_s         no wait after the fault may be longer; `because` says why it is more than 30 s
    """

    thing: str
    happens: str
    act: str
    moments: tuple[Moment, ...] = EACH
    drawn: int = 0
    back_after_s: float | None = None
    codes: tuple[int, ...] = (0,)
    said: str = ""
    sees: str = ""
    kept: str = ""
    resumes: bool = False
    setting: str = ""
    flags: tuple[str, ...] = ()
    does: str = ""
    within_s: float = 30.0
    because: str = ""

    @property
    def name(self) -> str:
        return f"{self.thing}: {self.happens}"


@dataclass(frozen=True, slots=True)
class Cell:
    row: Row
    moment: Moment

    @property
    def name(self) -> str:
        return f"{self.row.name}-{self.moment.value}"


GONE = r"training goes on, and what is written there is lost"
GONE_SEES = "at once, a warning that names what is gone; `outlast report` lacks what came after"
LEDGER_SEES = "a warning if it lasts for some seconds, and at the end if anything is missing"
STOPPED = "the last step, in the checkpoint of the stop"
SAVES = ("--checkpoint-every", "20")
SPARE = ("--spares", "1")

ROWS: tuple[Row, ...] = (
    # --- console
    Row("console", "its reader goes away", "close_console", setting="piped console"),
    Row(
        "console",
        "its reader stops",
        "stop_console",
        setting="piped console",
        sees="the log files have what the console could not show",
    ),
    Row(
        "console",
        "its reader stops, and reads on",
        "stop_console",
        (T, G, C),
        2,
        1.5,
        setting="piped console",
        sees="how many lines were left out",
    ),
    Row("console", "its terminal is closed", "close_terminal", (S, T, G, E), 2, setting="terminal"),
    Row("console", "the disk of its file is full", "do_nothing", (S,), setting="full console"),
    # --- store
    Row("store host", "dies", "kill_store"),
    Row("store host", "stops", "stop_store"),
    Row("store host", "is slow (stops for a second)", "stop_store", (T, G, C), 2, 1.0),
    Row("store host", "dies, and the next one too", "kill_store_twice", (T, G)),
    Row("store host", "dies, and a spare stands ready", "kill_store", (G,), flags=SPARE),
    # --- zygote
    Row("zygote", "dies", "kill_zygote"),
    Row("zygote", "stops", "stop_zygote"),
    Row("zygote", "is slow (stops for a second)", "stop_zygote", (S, G), 0, 1.0),
    Row("zygote", "dies, and a spare stands ready", "kill_zygote", (G,), flags=SPARE),
    Row("zygote", "dies, and the store host too", "kill_zygote_and_store", (T, G)),
    Row("zygote", "stops, and the store host too", "stop_zygote_and_store", (T, G)),
    # --- vault
    Row(
        "vault",
        "is removed",
        "remove_vault",
        said=r"was removed .*files are held open",
        sees="a warning: the launcher holds the files open, and gave them their names back",
    ),
    Row(
        "vault",
        "is removed, and a folder of its name is made",
        "replace_vault",
        (T, G),
        sees="the same warning",
    ),
    Row("vault", "shared memory fills up", "fill_shm", (T, G, C), setting="small shared memory"),
    Row(
        "vault",
        "shared memory fills up, and has room again",
        "fill_shm",
        (T, G),
        1,
        2.0,
        setting="small shared memory",
    ),
    Row(
        "vault",
        "shared memory is full from the start",
        "do_nothing",
        (S,),
        codes=(1,),
        said="no vault can be made|the vault needs",
        sees="how much more is needed",
        kept="nothing, because the run did not begin",
        setting="full shared memory",
    ),
    Row(
        "vault",
        "shared memory may not be written",
        "do_nothing",
        (S,),
        codes=(1,),
        said="no vault can be made.*Read-only",
        sees="which folder has to be writable",
        kept="nothing, because the run did not begin",
        setting="closed shared memory",
    ),
    # --- run folder
    Row("run folder", "is removed", "remove_folder", (T, G, C, E), said=GONE, sees=GONE_SEES),
    Row(
        "run folder",
        "is removed as the run starts",
        "remove_folder",
        (S,),
        codes=(0, 2),
        said=GONE + "|was removed while it was in use",
        sees=GONE_SEES,
        kept="nothing, if the ledger was not written yet",
    ),
    Row("run folder", "is moved", "move_folder", (T, G, C, E), 3, said=GONE, sees=GONE_SEES),
    Row(
        "run folder",
        "is moved, and comes back",
        "move_folder",
        (T, G),
        0,
        2.0,
        said=GONE,
        sees=GONE_SEES,
    ),
    Row(
        "run folder",
        "another one takes its place",
        "replace_folder",
        (T, G),
        said=GONE,
        sees=GONE_SEES,
    ),
    Row("run folder", "its logs are removed", "remove_logs", (T, G), 1),
    Row("run folder", "its evidence is removed", "remove_evidence", (T, G)),
    Row(
        "run folder",
        "it is held by another launcher",
        "do_nothing",
        (S,),
        codes=(2,),
        said="is in use by process",
        sees="which process has it",
        kept="everything, because nothing is changed",
        setting="held folder",
    ),
    # --- disk
    Row("disk", "fills up", "fill_disk", (T, G, C, E), setting="small disk", sees=LEDGER_SEES),
    Row(
        "disk",
        "fills up, and has room again",
        "fill_disk",
        (T, G, C),
        2,
        2.5,
        setting="small disk",
        sees=LEDGER_SEES,
    ),
    Row(
        "disk",
        "is full from the start",
        "do_nothing",
        (S,),
        codes=(1,),
        said="cannot be written",
        sees="what cannot be written",
        kept="nothing, because the run did not begin",
        setting="full disk",
    ),
    Row(
        "disk",
        "becomes read-only",
        "make_read_only",
        (T, G, C, E),
        setting="small disk",
        sees=LEDGER_SEES,
    ),
    Row(
        "disk",
        "becomes read-only, and comes back",
        "make_read_only",
        (G, C),
        0,
        2.0,
        setting="small disk",
        sees=LEDGER_SEES,
    ),
    # --- checkpoints
    Row("checkpoint folder", "is removed", "remove_checkpoints", (T, G, C), flags=SAVES),
    Row(
        "checkpoint folder",
        "a file takes its place",
        "replace_checkpoints",
        (T, C),
        said="checkpoint.*failed",
        sees="a warning that names the checkpoint",
        flags=SAVES,
    ),
    # --- ledger
    Row(
        "ledger",
        "is locked to the end",
        "lock_ledger",
        (T, G, C, E),
        said="the ledger lacks this run's end",
        sees=LEDGER_SEES,
    ),
    Row("ledger", "is locked for a while", "lock_ledger", (S, T, G), 2, 1.5),
    Row("ledger", "is removed", "remove_ledger", (T, G, C, E), 3, said=GONE, sees=GONE_SEES),
    Row("ledger", "is cut to nothing", "cut_ledger", (T, G, E), sees=LEDGER_SEES),
    Row("ledger", "is overwritten", "overwrite_ledger", (T, G, C), 2, sees=LEDGER_SEES),
    Row("ledger", "its index (-shm) is cut", "cut_index", (T, G, E)),
    Row("ledger", "its log (-wal) is cut", "cut_wal", (T, G), 1, sees=LEDGER_SEES),
    # --- limits
    Row(
        "descriptors",
        "the launcher may open no more",
        "limit_descriptors",
        (T, G, C),
        back_after_s=2.0,
        sees="what cannot be started, and that it is tried again",
    ),
    Row("descriptors", "the zygote may open no more", "limit_zygote_descriptors", (T, G), 0, 2.0),
    Row(
        "descriptors",
        "are too few from the start",
        "do_nothing",
        (S,),
        codes=(2,),
        said=r"open files, and this process may have 40 .*ulimit -n",
        sees="how many are needed, and how to allow them",
        kept="nothing, because the run did not begin",
        setting="few descriptors",
    ),
    Row("memory", "the launcher gets no more", "limit_memory", (T, G, C), 2, 2.0),
    Row(
        "file size",
        "the launcher may not make files longer",
        "limit_file_size",
        (T, C),
        sees=LEDGER_SEES,
    ),
    Row(
        "processes",
        "no more can be started",
        "limit_processes",
        (T, G),
        0,
        3.0,
        setting="own process group",
        sees="what cannot be started, and that it is tried again",
    ),
    Row(
        "threads",
        "a rank gets no more",
        "limit_rank_threads",
        (T, G),
        0,
        3.0,
        setting="own process group",
        sees="which rank waits for threads",
    ),
    Row(
        "threads",
        "are too few from the start",
        "do_nothing",
        (S,),
        codes=(1,),
        said="error: .*(can't start new thread|Resource temporarily unavailable)",
        sees="which limit is reached",
        kept="nothing, because the run did not begin",
        setting="few threads",
        within_s=120.0,
        because="the limit may still be lifted during the first minute",
    ),
    # --- launcher
    Row(
        "launcher",
        "SIGTERM",
        "send_term",
        codes=(143,),
        said="stopping|",
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGINT (Ctrl-C)",
        "send_int",
        codes=(130,),
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGHUP (its terminal is closed)",
        "send_hup",
        (S, T, G, C),
        codes=(129,),
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGQUIT",
        "send_quit",
        (T, G, C),
        2,
        codes=(131,),
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGTERM twice",
        "send_term_twice",
        (T, G),
        codes=(143,),
        flags=SAVES,
        kept="the newest checkpoint",
    ),
    Row("launcher", "SIGHUP under nohup", "send_hup", (T, G), 1, setting="nohup"),
    Row("launcher", "stops for two seconds", "stop_launcher", back_after_s=2.0),
    Row(
        "launcher",
        "is killed before it has begun",
        "kill_launcher",
        (S,),
        codes=(-9,),
        kept="nothing, because the run had not begun; start a new run",
    ),
    Row(
        "launcher",
        "is killed",
        "kill_launcher",
        (T, G, C),
        codes=(-9,),
        resumes=True,
        flags=SAVES,
        kept="the newest checkpoint; under FSDP2 the images in shared memory",
    ),
    Row(
        "launcher",
        "SIGUSR1 (the machine is taken away)",
        "send_usr1",
        (T,),
        codes=(143,),
        said="stopping|",
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGUSR2 (a scheduler's notice)",
        "send_usr2",
        (T, G),
        1,
        codes=(143,),
        said="stopping|",
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row(
        "launcher",
        "SIGXCPU (the time of the job is over)",
        "send_xcpu",
        (T, G),
        1,
        codes=(143,),
        said="stopping|",
        kept=STOPPED,
        flags=SAVES,
        sees="why it stops",
    ),
    Row("launcher", "SIGPIPE, SIGWINCH, SIGCHLD", "send_harmless", (T, G)),
    Row("launcher", "Ctrl-Z, and on again", "stop_by_terminal", (T, G), 1, 1.5),
    # --- ranks and their children, for comparison
    Row("rank", "dies", "kill_rank"),
    Row("rank", "stops", "stop_rank", (T, C, E)),
    Row("rank", "is held by a debugger for three seconds", "hold_by_debugger", (T, C)),
    Row(
        "rank",
        "all die",
        "kill_all_ranks",
        (S, T, C),
        flags=SAVES,
        sees="how many steps are trained again",
    ),
    # --- what a rank does by itself
    Row("rank", "leaves by os._exit(0)", "see_strike", (T,), does="exit"),
    Row(
        "rank",
        "leaves by sys.exit(), and the others do not",
        "see_strike",
        (T,),
        does="sysexit",
        said="exit code 0",
        sees="an interruption that names the rank",
    ),
    Row("rank", "crashes (SIGSEGV)", "see_strike", (T,), does="SIGSEGV"),
    Row("rank", "runs another program (exec)", "see_strike", (T,), does="run_another_program"),
    Row("rank", "dies of its own alarm signal", "see_strike", (T,), does="ring"),
    Row("rank", "waits for a lock that it holds itself", "see_strike", (T,), does="lock_twice"),
    Row(
        "rank",
        "opens files until it reaches its limit",
        "see_strike",
        (T,),
        does="use_up_descriptors",
    ),
    Row(
        "rank",
        "closes descriptors that other code has opened",
        "see_strike",
        (T,),
        does="close_descriptors",
    ),
    Row("rank", "closes its stdout and stderr", "see_strike", (T,), does="take_output_away"),
    Row(
        "rank",
        "prints a line of 30 MB, and bytes that are not text",
        "see_strike",
        (T,),
        does="print_much",
    ),
    Row(
        "rank",
        "changes its folder and umask, and dies",
        "see_strike",
        (T,),
        does="change_folder_and_mask",
        flags=SAVES,
    ),
    Row(
        "rank",
        "leaves a process behind that holds its pipes, and dies",
        "see_strike",
        (T,),
        does="leave_a_daemon",
    ),
    Row("rank", "has a child that it never reaps", "see_strike", (T,), does="leave_a_zombie"),
    Row(
        "rank",
        "raises an exception in a thread",
        "see_strike",
        (T,),
        does="raise_in_thread",
        sees="the thread's traceback",
    ),
    Row("loader worker", "dies", "kill_loader", (T, G), setting="loaders"),
    Row("loader worker", "stops", "stop_loader", (T,), setting="loaders"),
    # --- what a replacement needs
    Row(
        "script", "is removed, and put back", "remove_script", (T, G), 0, 1.5, setting="own script"
    ),
    Row("working folder", "is removed", "remove_working_folder", (T, G), setting="own folder"),
    Row("temporary folder", "is removed", "remove_temporary", (T, G), 1, setting="own temporary"),
    # --- network
    Row(
        "loopback",
        "is down for two seconds",
        "loopback_down",
        (T, G),
        0,
        2.0,
        setting="own network",
    ),
    Row(
        "loopback",
        "is down from the start",
        "do_nothing",
        (S,),
        codes=(1,),
        said="nobody on this machine can connect",
        kept="nothing, because the run did not begin",
        setting="no network",
        sees="what could not be reached",
    ),
    # --- others on the machine
    Row("others", "send garbage to the store's port", "garbage_to_store", (T, G, E), 2),
    Row("others", "hold a hundred connections to the store", "flood_store", (T, G), 1),
    Row(
        "others",
        "have files with outlast's names in shared memory",
        "do_nothing",
        (S,),
        setting="strange shared memory",
    ),
    # --- clocks
    Row(
        "clock",
        "the monotonic clock is a day ahead of the machine's",
        "do_nothing",
        (S,),
        setting="other clock",
    ),
    Row(
        "clock",
        "the wall clock is set forward by two days",
        "wall_clock_forward",
        (S, T, G, C),
        2,
        flags=SAVES,
        setting="own wall clock",
    ),
    Row(
        "clock",
        "the wall clock is set back by three days",
        "wall_clock_back",
        (S, T, G, C),
        2,
        flags=SAVES,
        setting="own wall clock",
    ),
    Row(
        "clock",
        "the processors are taken away for two seconds",
        "stop_everything",
        (T, G, C),
        2,
        2.0,
    ),
)

LEFT_OUT: tuple[tuple[str, str], ...] = (
    (
        "the disk is slow",
        "`outlast drill` slows the disk of a run (`slow_disk`); for the launcher, a locked ledger"
        " is the same, and a process of its own writes checkpoints",
    ),
    (
        "the ledger's index (-shm) is cut at the moment at which the launcher writes",
        "SQLite has mapped it, so the launcher dies of SIGBUS; it writes all the time while a run"
        " starts, and once a second after that",
    ),
    (
        "files of the vault are cut short",
        "a process that has mapped them dies of SIGBUS; only this user"
        " can do that, and none of the known cleaners does",
    ),
    (
        "limits of another user (RLIMIT_NPROC, chmod)",
        "the tests run as root, to whom these limits do not apply; they use a control group"
        " instead of the first, and a read-only disk instead of the second",
    ),
    (
        "systemd-logind's RemoveIPC",
        "it removes the vault by name, which is a row of the table; it"
        " spares users whose id is below 1000, and users with lingering enabled",
    ),
    ("a real interface goes down", "a run on one node uses loopback only"),
    (
        "the interpreter or torch is removed or upgraded",
        "a fork of the zygote needs neither;"
        " a spawned worker fails, and says what it could not import",
    ),
    ("power is lost", "this cannot be tried without losing the machine that runs the tests"),
)


def cells(seed: int = SEED) -> list[Cell]:
    """Return all cells: each row at each of its moments, or at as many as are drawn."""
    out = []
    for row in ROWS:
        moments = row.moments
        if row.drawn:
            chance = random.Random(f"{seed} {row.name}")
            moments = tuple(sorted(chance.sample(moments, row.drawn), key=EACH.index))
        out += [Cell(row, moment) for moment in moments]
    return out
