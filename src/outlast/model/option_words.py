"""Find out what is meant by an option that does not exist.

It may be misspelt, or an option of another launcher: torchrun, accelerate, deepspeed, horovodrun,
mpirun, srun or torchft. Some of these words resemble none of outlast's options, or a wrong one. So
they are listed here.

This module is pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# A word that is less similar than this mostly has another meaning.
_ALIKE = 0.72

_RANKS = (
    "n",
    "np",
    "j",
    "w",
    "p",
    "nproc",
    "nprocs",
    "num-proc",
    "num-procs",
    "num-processes",
    "processes",
    "procs",
    "proc-per-node",
    "procs-per-node",
    "num-workers",
    "workers",
    "workers-per-node",
    "num-gpus",
    "num-gpu",
    "gpus",
    "gpu",
    "ngpus",
    "ngpus-per-node",
    "gpus-per-node",
    "gpus-per-task",
    "ntasks",
    "ntasks-per-node",
    "tasks",
    "tasks-per-node",
    "devices",
    "num-devices",
    "ranks",
    "num-ranks",
    "nranks",
    "world-size",
    "local-world-size",
    "replicas",
    "num-replicas",
    "slots",
    "slots-per-host",
)
_NODES = ("nodes", "num-nodes", "num-machines", "machines", "hosts", "num-hosts", "N")

# outlast's options, and the words of other launchers for them: no leading dashes, and "-" for "_"
_WORDS: dict[str, tuple[str, ...]] = {
    "--nproc-per-node": _RANKS,
    "--nnodes": _NODES,
    "--node-rank": ("machine-rank", "nodeid", "node-id"),
    "--master-addr": ("main-process-ip", "master-ip", "master"),
    "--master-port": ("main-process-port", "port"),
    "--run-dir": ("output-dir", "output", "outdir", "out", "o", "rundir", "folder", "name"),
    "--spares": ("hot-spares", "spare", "standby", "num-spares"),
    "--resume": ("resume-from", "resume-from-checkpoint", "restart", "continue"),
    "--checkpoint-every": (
        "checkpoint-interval",
        "checkpoint-steps",
        "checkpoint-freq",
        "save-every",
        "save-steps",
        "save-interval",
        "ckpt-every",
        "ckpt-interval",
    ),
    "--checkpoint-dir": ("ckpt-dir", "checkpoint-path", "save-dir"),
    "--keep-last": ("save-total-limit", "max-checkpoints"),
    "--max-restarts": ("restarts", "max-retries", "retries", "reset-limit"),
    "--hang-after": ("timeout", "hang-timeout", "step-timeout"),
    "--quiet": ("q", "silent"),
}

# options of other launchers for what outlast does in another way
_OTHERWISE: dict[str, str] = {
    "multi-gpu": "leave it out: --nproc-per-node says how many ranks there are",
    "use-deepspeed": "leave it out: what a script trains with is the script's own business",
    "use-fsdp": "leave it out: what a script trains with is the script's own business",
    "mixed-precision": "leave it out: precision is the script's own business (torch.autocast)",
    "dynamo-backend": "leave it out: compiling is the script's own business (torch.compile)",
    "cpu": "leave it out: without GPUs ranks train on the CPU",
    "use-env": "leave it out: ranks are in the environment always",
    "no-local-rank": "leave it out: ranks are in the environment always, and not in arguments",
    "local-rank": "leave it out: each rank finds its own in the environment (LOCAL_RANK)",
    "num-cpu-threads-per-process": "leave it out, and set OMP_NUM_THREADS in the environment",
    "config-file": "leave it out: options are given on the command line",
    "hostfile": "leave it out, and start the same command on each node with --nnodes",
    "host": "leave it out, and start the same command on each node with --nnodes",
    "H": "leave it out, and start the same command on each node with --nnodes",
    "launcher": "leave it out: outlast starts the ranks itself",
    "lighthouse": "leave it out: `outlast run` watches the ranks itself",
    "min-replicas": "leave it out: the number of ranks stays the same; `--resume` takes another",
    "min-np": "leave it out: the number of ranks stays the same; `--resume` takes another",
    "max-np": "leave it out: the number of ranks stays the same; `--resume` takes another",
    "elastic": "leave it out: the number of ranks stays the same; `--resume` takes another",
    "include": "leave it out, and choose GPUs by CUDA_VISIBLE_DEVICES",
    "exclude": "leave it out, and choose GPUs by CUDA_VISIBLE_DEVICES",
    "gpu-ids": "leave it out, and choose GPUs by CUDA_VISIBLE_DEVICES",
    "env": "leave it out, and set the variable in front of `outlast run`",
    "version": "`outlast --version` prints it",
    "verbose": "leave it out: `outlast top` and `outlast report` show more of a run",
    "v": "leave it out: `outlast top` and `outlast report` show more of a run",
}


_SAID = {
    "--nproc-per-node": "`--nproc-per-node N` says how many ranks there are",
    "--nnodes": "`--nnodes N` says how many nodes there are",
}


def meant_option(word: str, options: Iterable[str]) -> str:
    """Return a hint for an option that does not exist, or "" if nothing is similar.

    word     the option as it was given, with or without "=value"
    options  the options that the command has, with their dashes
    """
    # torch's parser has two spellings for most options. The one with dashes is shown.
    ours = {_bare(one): one for one in sorted(options, key=lambda one: "-" not in one[2:])[::-1]}
    bare = _bare(word)
    for option, words in _WORDS.items():
        if bare in words and option in ours.values():
            return _SAID.get(option, f"did you mean {option}?")
    if bare in _OTHERWISE:
        return _OTHERWISE[bare]
    close = difflib.get_close_matches(bare, ours, n=1, cutoff=_ALIKE)
    return f"did you mean {ours[close[0]]}?" if close else ""


def _bare(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("_", "-")
