"""Rules for torchrun and similar launchers (accelerate, deepspeed, lightning, ray, mpirun).

Their lines say which processes ended, by what, and which of them first.

"Root Cause (first observed failure)" is the earliest time that one agent recorded, to the second: a
place to look, not a reason.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
AGENT = "torch distributed/elastic/agent/server/api.py, multiprocessing/api.py"
ERRORS = "torch distributed/elastic/multiprocessing/errors/__init__.py"
RDZV = "torch distributed/elastic/rendezvous"
SIGNAL, EXIT = Mechanism.SIGNAL, Mechanism.EXIT
KILLED = "posix signal(7): SIGKILL is sent by the OOM killer, and by much else"

RULES: tuple[Rule, ...] = (
    # loader workers: they name the signal
    root(
        "loader.bus",
        r"dataloader worker .{0,40}killed by signal: bus error|out of shared memory|raise your"
        r" shared memory limit"
        r"|insufficient shared memory",
        C.HOST_MEMORY,
        G.NAMED,
        "torch utils/data/_utils/signal_handling.py, DataLoader.cpp",
        mechanism=SIGNAL,
        priority=2010,
    ),
    root(  # memory is what kills most of them, and SIGKILL has other senders
        "loader.killed",
        r"dataloader worker .{0,40}killed by signal: killed",
        C.HOST_MEMORY,
        G.POSSIBLE,
        "torch csrc/DataLoader.cpp; " + KILLED,
        mechanism=SIGNAL,
        priority=2020,
    ),
    root(
        "loader.segfault",
        r"dataloader worker .{0,40}killed by signal: (?:segmentation|aborted|illegal|floating)",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "torch csrc/DataLoader.cpp",
        also=(C.USER_CODE, C.USER_DATA),
        mechanism=SIGNAL,
        priority=2030,
    ),
    messenger(
        "loader.gone",
        r"dataloader worker .{0,40}exited unexpectedly|dataloader worker .{0,40}killed by signal"
        r"|subprocesses has abruptly died|process pool was terminated abruptly",
        "torch csrc/DataLoader.cpp; huggingface datasets/utils/py_utils.py; python"
        " concurrent/futures/process.py",
        failure_class=C.HOST_MEMORY,
        grade=G.HINT,
        mechanism=SIGNAL,
        priority=2040,
    ),
    messenger(  # what the worker itself raised stands below it
        "loader.caught",
        r"caught \w{3,60} in (?:dataloader worker process|pin memory thread|replica) \d",
        "torch _utils.py, ExceptionWrapper",
        mechanism=Mechanism.EXCEPTION,
        priority=11005,
    ),
    messenger(
        "loader.slow",
        r"dataloader timed out after",
        "torch utils/data/dataloader.py",
        failure_class=C.STORAGE,
        grade=G.HINT,
        mechanism=Mechanism.HANG,
        priority=11010,
    ),
    root(  # other programs may be missing where a script goes on without them
        "launch.not_found",
        r"\b(?:torchrun|python[\d.]{0,5}|deepspeed|accelerate|mpirun|mpiexec):"
        r" (?:command )?not found$"
        r"|execve\(\): (?:torchrun|python[\d.]{0,5}|deepspeed|accelerate): no such file",
        C.DEPENDENCY,
        G.LIKELY,
        "posix sh, exit code 127; slurm src/slurmd",
        also=(C.USER_CODE,),
        mechanism=EXIT,
        priority=11012,
    ),
    advice(  # these say which process is which rank
        "deepspeed.process",
        r"process \d{1,9} spawned with command: ",
        "deepspeed launcher/launch.py",
        priority=11013,
    ),
    advice(
        "deepspeed.node",
        r"nnodes=\d{1,6}, num_local_procs=\d{1,4}, node_rank=\d{1,6}",
        "deepspeed launcher/launch.py",
        priority=11014,
    ),
    # signals: how it ended is not why
    effect(
        "exit.outside",
        r"received (?:signals\.)?(?:sigterm|sighup|sigint|sigquit|\d+) death signal"
        r"|signalexception: process \d+ got signal",
        AGENT + ": the launcher itself was sent a signal",
        mechanism=SIGNAL,
        priority=11015,
    ),
    effect(
        "exit.closing",
        r"closing (?:process|worker)[^,]{0,40}via signal|sending process \d+ closing signal|closing"
        r" signal sig|got termination signal|signalexception|unable to shutdown"
        r" process|signal (?:15|1|2) \(sig"
        r"|exitcode ?: -(?:15|1|2)\b|sent (?:sigterm|sigkill) to",
        AGENT,
        priority=11020,
    ),
    messenger(
        "exit.kill",
        r"signal 9 \(sigkill\)|exitcode ?:? ?-9\b|exit code:? -9\b|(?:exitcode|exit"
        r" code|exit_code)[\"' ]{0,2}[:=]? {0,8}137\b"
        r"|killed by signal 9|exited on signal 9\b|exit (?:status|code) 137|return code = -9"
        r"|died with <signals\.sigkill"
        r"|worker .{0,40}was sent sigkill|terminated with signal sigkill",
        KILLED,
        failure_class=C.HOST_MEMORY,
        grade=G.HINT,
        mechanism=SIGNAL,
        priority=11030,
    ),
    messenger(
        "exit.killed_bare",
        r"^(?:.{0,80}(?::|\]) )?killed$|line \d+: {1,3}\d+ killed|\d+ killed {2,}",
        KILLED,
        failure_class=C.HOST_MEMORY,
        grade=G.HINT,
        mechanism=SIGNAL,
        priority=11040,
    ),
    messenger(
        "exit.bus",
        r"terminated with signal sigbus|"
        r"signal 7 \(sigbus\)|exitcode ?: -7\b|(?:exitcode|exit code|exit_code)[\"' ]{0,2}[:=]?"
        r" {0,8}135\b|died with <signals\.sigbus"
        r"|(?<!pcie )\bbus error\b",
        "posix signal(7): SIGBUS, a mapping that cannot be backed",
        failure_class=C.HOST_MEMORY,
        grade=G.POSSIBLE,
        mechanism=SIGNAL,
        priority=11050,
    ),
    messenger(
        "exit.segv",
        r"terminated with signal sigsegv|"
        r"signal 11 \(sigsegv\)|exitcode ?: -11\b|(?:exitcode|exit code|exit_code)[\"' ]{0,2}[:=]?"
        r" {0,8}139\b|caught signal 11"
        r"|segmentation fault|died with <signals\.sigsegv|return code = -11",
        "posix signal(7): SIGSEGV",
        failure_class=C.SOFTWARE_BUG,
        grade=G.POSSIBLE,
        mechanism=SIGNAL,
        priority=11060,
    ),
    messenger(
        "exit.illegal",
        r"terminated with signal sigill|"
        r"signal 4 \(sigill\)|exitcode ?: -4\b|illegal instruction \(core|died with"
        r" <signals\.sigill",
        "posix signal(7): SIGILL, code for another processor",
        failure_class=C.DEPENDENCY,
        grade=G.POSSIBLE,
        mechanism=SIGNAL,
        priority=11070,
    ),
    messenger(
        "exit.fpe",
        r"terminated with signal sigfpe|"
        r"signal 8 \(sigfpe\)|exitcode ?: -8\b|floating point exception",
        "posix signal(7): SIGFPE",
        failure_class=C.SOFTWARE_BUG,
        grade=G.POSSIBLE,
        mechanism=SIGNAL,
        priority=11080,
    ),
    messenger(
        "exit.abort",
        r"terminated with signal sigabrt|"
        r"signal 6 \(sigabrt\)|exitcode ?: -6\b|(?:exitcode|exit code|exit_code)[\"' ]{0,2}[:=]?"
        r" {0,8}134\b|died with <signals\.sigabrt"
        r"|fatal python error: aborted",
        "posix signal(7): SIGABRT",
        mechanism=SIGNAL,
        priority=11090,
    ),
    messenger(
        "exit.code",
        r"failed \(exitcode: \d+\)|exitcode ?: [1-9]\d*\b|exited with exit code \d+|process"
        r" .{0,20}exited with (?:error )?code"
        r"|returned non-zero exit status|return code = \d+"
        r"|exits with return code|detected non-zero exit code|process \d+ terminated with exit"
        r" code",
        AGENT,
        mechanism=EXIT,
        priority=11100,
    ),
    # the agent
    effect(
        "elastic.summary",
        r"childfailederror|root cause \(first observed failure\)|other"
        r" failures:|failures:$|<no_other_failures>"
        r"|traceback : to enable traceback|to enable traceback see|failed to parse reply file",
        ERRORS,
        priority=11110,
    ),
    effect(
        "elastic.restart",
        r"attempts left; will restart worker group|worker group failed|stopping worker group|will"
        r" restart worker group"
        r"|restarting worker group",
        AGENT,
        priority=11120,
    ),
    advice(
        "launcher.succeeded",
        r"worker group successfully finished|workerstate\.succeeded",
        AGENT,
        priority=11125,
    ),
    messenger(
        "elastic.dstate",
        r"stuck in uninterruptible sleep|entered uninterruptible sleep|may be in uninterruptible"
        r" kernel sleep",
        AGENT,
        failure_class=C.STORAGE,
        grade=G.HINT,
        mechanism=Mechanism.HANG,
        priority=11130,
    ),
    messenger(
        "rdzv.closed",
        r"rendezvousclosederror|rendezvous .{0,60}(?:has been|is|was) closed",
        RDZV,
        priority=11140,
    ),
    messenger(
        "rdzv.timeout",
        r"rendezvoustimeouterror|rendezvousgracefulexiterror|rendezvous .{0,60}timed? ?out",
        RDZV,
        mechanism=Mechanism.HANG,
        priority=11150,
    ),
    messenger(
        "rdzv.connection",
        r"rendezvousconnectionerror|rendezvousstateerror|connection to the c10d store has"
        r" failed|rendezvous.{0,80}(?:failed|lost)"
        r"|failed to shutdown the rendezvous",
        RDZV,
        failure_class=C.NETWORK,
        grade=G.HINT,
        mechanism=Mechanism.LOST_CONTACT,
        priority=11160,
    ),
    messenger(
        "rdzv.heartbeat",
        r"keep-?alive .{0,60}(?:failed|expired)|has been lost due to (?:missing|expired) keep|node"
        r" .{0,80}(?:lost|left the rendezvous)",
        RDZV,
        mechanism=Mechanism.LOST_CONTACT,
        priority=11170,
    ),
    messenger(
        "peer.gone",
        r"(?:worker|node|actor) .{0,60}(?:died|has died|unexpectedly|was"
        r" lost)|workercrashederror|actordiederror|rayactorerror"
        r"|lost connection to|missed too many heartbeats",
        "ray core, failure messages; torch elastic",
        mechanism=Mechanism.LOST_CONTACT,
        priority=11180,
    ),
    advice(
        "ray.worker",
        r"\((?:node_id=\w{1,64}, )?ip=[\d.]{7,15}, pid=\d{1,9}\) world_rank=\d{1,6}",
        "ray train/_internal/backend_executor.py: which process is which rank",
        priority=11185,
    ),
    messenger(  # the exception itself stands at the end of what follows
        "ray.task_error",
        r"raytaskerror\(\w{1,80}\): {0,4}(?:.\[\d{1,2}m)?ray::",
        "ray python/ray/exceptions.py, RayTaskError: which process raised",
        mechanism=Mechanism.EXCEPTION,
        priority=11187,
    ),
    root(
        "ray.memory",
        r"killed due to memory pressure|outofmemoryerror: task was killed|memory"
        r" monitor.{0,60}kill",
        C.HOST_MEMORY,
        G.NAMED,
        "ray memory monitor",
        mechanism=SIGNAL,
        priority=11190,
    ),
    effect(
        "mpi.abort",
        r"mpi_abort was invoked|mpirun (?:noticed|has exited|detected)|primary job"
        r" {1,2}terminated|orte_|prte_"
        r"|one or more processes exited",
        "open mpi orterun",
        priority=11200,
    ),
    advice(
        "loader.advice",
        r"this dataloader will create \d+ worker|our suggested max number of worker",
        "torch utils/data/dataloader.py",
        priority=11210,
    ),
    effect(
        "mp.leaked",
        r"resource_tracker: there appear to be|leaked (?:semaphore|shared_memory)",
        "python multiprocessing/resource_tracker.py",
        priority=11220,
    ),
)
