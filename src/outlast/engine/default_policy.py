"""The policy of a run that names none.

It is text, so that `outlast policy show` prints what is in force, to be copied and changed; and it
is a module, for what decides opens no files.
"""

from __future__ import annotations

import functools

from outlast.model.policy import Policy, parse

TEXT = """\
# What is done once an interruption has a verdict. The run has gone on by then; nothing here undoes a commit.
# How to write one: docs/how-to/write-a-policy.md. Try it on recorded incidents: `outlast policy test POLICY INCIDENT...`
schema = 1
dry_run = false                                             # true: everything is decided and written down, and nothing is done
drain = { confidence = 0.8, incidents = 2 }                 # one of the two is needed; neither can be lowered
breaker = { actions = 3, within_s = 3600, open_s = 3600 }   # a run that loses node after node has a trouble that no node explains

[budget]
drain = { times = 2, within_s = 86400 }                     # nodes
exclude = { times = 4, within_s = 86400 }
page = { times = 10, within_s = 3600 }

# Parts of a node that do not heal by themselves: whoever gets the node next fails again.
[[rule]]
id = "broken-node"
action = "drain"
otherwise = "page"
[rule.when]
class = [
    "gpu", "hbm", "sram", "gpu_system_processor", "nvlink", "nic", "ssd", "cpu", "system_memory", "power_supply", "chassis", "io_board",
    "silent_data_corruption",
]

# It is about to be taken away: better between two steps than within one.
[[rule]]
id = "maintenance"
when = { class = "host_maintenance" }
action = "drain"
otherwise = "exclude"

# Slow, and sound: it may be the room, or a neighbour. Training is not interrupted for it.
[[rule]]
id = "slow-node"
when = { class = ["thermal", "straggler"], confidence = 0.5, incidents = 2 }
action = "exclude"

# What many nodes share. Taking one of them out would not help.
[[rule]]
id = "shared"
when = { class = ["network", "storage"], confidence = 0.5 }
action = "page"
backoff = { first_s = 600, factor = 2, most_s = 14400 }

# Nobody knows why, and it is the same node again.
[[rule]]
id = "unexplained"
when = { class = "unknown", incidents = 3 }
action = "exclude"
budget = { times = 1, within_s = 86400 }

# Whose code it is can mend it. A run that makes no progress ends by the budgets of recovery; one that does is not ended for this.
[[rule]]
id = "software"
when = { class = ["user_code", "user_data", "software_bug", "dependency", "gpu_oom", "host_memory"], confidence = 0.5, incidents = 3, within_s = 21600 }
action = "page"
backoff = { first_s = 600, factor = 2, most_s = 14400 }
"""


@functools.cache
def default_policy() -> Policy:
    return parse(TEXT, source="the default policy")
