"""The pieces of text that drawn scripts are made of: what never changes, and the model."""

from __future__ import annotations

from tests.drills.features.draw import Features

IMPORTS = """
import contextlib
import copy
import csv
import hashlib
import json
import os
import random
import signal
import threading

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import *
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import outlast
"""

FAULTS = '''
# --- the drill's: faults, and what was committed

RESULTS = os.environ.get("DRILL_RESULTS", ".")
STRIKES = json.loads(os.environ.get("DRILL_STRIKES", "[]"))
NOW = {"step": 0}


def strike(place, step):
    """Kill this process here, or raise, if the drill says so. A file remembers each fault."""
    for fault in STRIKES:
        if fault["at"] != place or step < fault["step"]:
            continue
        if RUN._membership.is_spare or RUN.rank != fault["rank"]:
            continue
        try:
            os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        if fault["after_s"]:
            threading.Timer(fault["after_s"], hit, (fault,)).start()
        else:
            hit(fault)


def hit(fault):
    if fault["do"] == "raise":
        raise RuntimeError(f"a drill at {fault['at']}")
    os.kill(os.getpid(), signal.Signals[fault["do"]])


def note_commit(number):
    with open(os.environ.get("DRILL_COMMITS", os.devnull), "a") as file:
        file.write(f"{RUN.rank} {number} {os.getpid()}\\n")
'''

HASHES = """
# --- the drill's: the whole state of a rank, as one hash for each named part


def hashed(value):
    found = hashlib.sha256()
    feed(found, value)
    return found.hexdigest()[:16]


def feed(found, value):
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        found.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        found.update(f"array {value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            feed(found, str(key))
            feed(found, value[key])
    elif isinstance(value, (list, tuple)):
        found.update(f"list {len(value)}".encode())
        for one in value:
            feed(found, one)
    else:
        assert value is None or isinstance(value, (str, int, float, bool)), type(value)
        found.update(repr(value).encode())


def random_parts():
    parts = {
        "random.python": hashed(random.getstate()),
        "random.numpy": hashed(np.random.get_state(legacy=False)),
        "random.torch": hashed(torch.get_rng_state()),
    }
    if RUN.device.type == "cuda":
        parts["random.cuda"] = hashed(torch.cuda.get_rng_state())
    return parts


def module_parts(module):
    parts = {f"parameter {name}": hashed(one) for name, one in module.named_parameters()}
    parts |= {f"buffer {name}": hashed(one) for name, one in module.named_buffers()}
    for name, one in module.named_modules():
        if type(one).get_extra_state is not nn.Module.get_extra_state:
            parts[f"extra {name}"] = hashed(one.get_extra_state())
    return parts


def optimizer_parts(name, optimizer):
    parts = {}
    for number, group in enumerate(optimizer.param_groups):
        rest = {key: value for key, value in group.items() if key != "params"}
        parts[f"{name} lr {number}"] = hashed(rest.pop("lr"))
        parts[f"{name} group {number}"] = hashed(rest)
        for index, parameter in enumerate(group["params"]):
            kept = optimizer.state.get(parameter, {})
            parts[f"{name} state {number}.{index}"] = hashed(dict(kept))
    return parts


def write_result(rank, parts):
    path = os.path.join(RESULTS, f"rank-{rank}.json")
    with open(path + ".part", "w") as file:
        json.dump(parts, file)
    os.replace(path + ".part", path)
"""

POINTS = '''
# --- the script


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw_numbers(torch_generator=None, numpy_generator=np.random, python_generator=random):
    """Augmentation, by all three generators. On a GPU torch's default one is the GPU's."""
    device = RUN.device if torch_generator is None else None
    drawn = torch.randn((), generator=torch_generator, device=device).item()
    return drawn + float(numpy_generator.normal()) + python_generator.gauss(0, 1)


def write_line(*values):
    """A log of the script's own. It has a line twice if a step is repeated."""
    with open(os.path.join(RESULTS, f"log-{os.getpid()}.csv"), "a", newline="") as file:
        csv.writer(file).writerow(values)


def draw_batch():
    if RUN is not None:
        strike("load", NOW["step"] + 1)
    return torch.randn(4, 8), torch.randint(4, (4,))


def progress(steps):
    """What a progress bar does around a loop."""
    for step in steps:
        yield step


class Points(Dataset):
    def __init__(self, noisy):
        self.noisy = noisy

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if RUN is not None and torch.utils.data.get_worker_info() is None:
            strike("load", NOW["step"] + 1)
        point = torch.linspace(-1, 1, 8) * (index % 7) + index / 96
        if self.noisy:
            point = point + 0.1 * torch.randn(8) + float(np.random.rand()) + random.random()
        return point, index % 4
'''

METERS = '''
class Meter:
    """Numbers."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total, self.count = self.total * 1.01 + value, self.count + 1

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class TensorMeter:
    """A tensor that is changed in place; state_dict() gives that tensor itself."""

    def __init__(self):
        self.table = torch.zeros(4, dtype=torch.float64)

    def add(self, value):
        self.table *= 1.01
        self.table[int(abs(value)) % 4] += value

    def state_dict(self):
        return {"table": self.table}

    def load_state_dict(self, state):
        self.table = state["table"]


class History:
    """All that was ever seen, as a metric keeps it that needs every prediction at its end."""

    def __init__(self):
        self.seen = torch.empty(0)

    def add(self, value):
        self.seen = torch.cat([self.seen, torch.full((10_000,), float(value))])

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class LiveMeter:
    """state_dict() gives the object's own dict, and load_state_dict() keeps what it is given."""

    def __init__(self):
        self.kept = {"seen": [], "sums": {}}

    def add(self, value):
        self.kept["seen"] = [*self.kept["seen"][-3:], value]
        self.kept["sums"]["all"] = self.kept["sums"].get("all", 0.0) * 1.01 + value

    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        self.kept = state


def swap_in(average, net):
    """Put the averaged weights into the model for an evaluation; gives those that were there."""
    held = [one.detach().clone() for one in net.parameters()]
    put_in(net, [one.detach() for one in getattr(average, "module", average).parameters()])
    return held


def put_in(net, values):
    with torch.no_grad():
        for one, value in zip(net.parameters(), values):
            one.copy_(value)


class Shadow:
    """The average of sharded weights: of this rank's shards."""

    def __init__(self, weights):
        self.kept = [local(one).clone() for one in weights]

    def update(self, weights):
        for mine, one in zip(self.kept, weights):
            mine.lerp_(local(one), 0.1)

    def state_dict(self):
        return {str(number): one for number, one in enumerate(self.kept)}

    def load_state_dict(self, state):
        for number, one in enumerate(self.kept):
            one.copy_(state[str(number)])


def local(tensor):
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
'''


def net_of(f: Features) -> str:
    """Return the class of the model."""
    made = ["self.first = nn.Linear(8, 16)"]
    if f.reparametrized != "none":
        made += [f"torch.nn.utils.parametrizations.{f.reparametrized}_norm(self.first)"]
    run = ["hidden = torch.relu(self.first(inputs))"]
    made += ["self.norm = nn.BatchNorm1d(16)"] if f.batch_norm else []
    run += ["hidden = self.norm(hidden)"] if f.batch_norm else []
    made += ["self.drop = nn.Dropout(0.2)"] if f.dropout else []
    run += ["hidden = self.drop(hidden)"] if f.dropout else []
    made += ["self.own = nn.Linear(16, 16)"] if f.ignored else []
    run += ["hidden = hidden + self.own(hidden)"] if f.ignored else []
    if f.unused:
        made += ["self.seldom = nn.Linear(16, 16)"]
        run += [
            'if NOW["step"] % 3 != 1:  # in other steps these are unused parameters',
            "    hidden = hidden + self.seldom(hidden)",
        ]
    if f.extra_state:
        made += ["self.counter = Counter()"]
        run += ["hidden = self.counter(hidden)"]
    if f.assigned_buffer:
        made += ['self.register_buffer("mean", torch.zeros(16), persistent=False)']
        run += [
            "if self.training:",
            "    self.mean = 0.9 * self.mean + 0.1 * hidden.detach().float().mean(0)",
        ]
    run += [
        "if self.training:",
        '    strike("forward", NOW["step"])',
        "    if hidden.requires_grad:",
        '        hidden.register_hook(lambda _: strike("backward", NOW["step"]))',
    ]
    made += ["self.middle, self.back = nn.Linear(16, 16), nn.Linear(16, 16)"]
    made += ["self.back.weight = self.middle.weight"] if f.tied else []
    if f.recomputed:
        made += ["self.noise = nn.Dropout(0.1)"]
        run += ["hidden = hidden + checkpoint(self.pair, hidden, use_reentrant=False)"]
    else:
        run += ["hidden = hidden + self.back(torch.tanh(self.middle(hidden)))"]
    if f.deep:
        made += ["self.layers_of_a_tower = nn.ModuleList(nn.Linear(16, 16) for _ in range(20))"]
        run += [
            "for layer in self.layers_of_a_tower:",
            "    hidden = hidden + 0.1 * torch.tanh(layer(hidden))",
        ]
    made += ["self.last = nn.Linear(16, 4)"]
    run += ["return self.last(hidden)"]
    return _COUNTER * f.extra_state + _class(made, run) + _PAIR * f.recomputed


_PAIR = '''

    def pair(self, hidden):
        """It runs again in the backward, with the same dropout."""
        return self.back(self.noise(torch.tanh(self.middle(hidden))))
'''
_COUNTER = '''
class Counter(nn.Module):
    """Counts its calls: neither a parameter nor a buffer, so it has an extra state."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, hidden):
        self.calls += self.training
        return hidden

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


'''


def _class(made: list[str], run: list[str]) -> str:
    lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        {line}" for line in made]
    lines += ["", "    def forward(self, inputs):"]
    return "\n".join([*lines, *(f"        {line}" for line in run)])
