"""The policy of a run that names none.

It is text, so that `outlast policy show` prints the policy in force, to be copied and changed. It
is in a module, because the engine opens no files.
"""

from __future__ import annotations

import functools

from outlast.model.policy import Policy, parse

TEXT = """\
# What is done once an interruption has a verdict. The run has gone on by then, and nothing here
# undoes a commit. How to write a policy: docs/how-to/write-a-policy.md.
# Try it on recorded incidents: `outlast policy test POLICY INCIDENT...`
schema = 1
# true: everything is decided and written down, and nothing is done.
dry_run = false
# A node is drained only with this confidence, or after this many incidents. Neither can be lowered.
drain = { confidence = 0.8, incidents = 2 }
# If a run loses one node after another, the cause is probably not in the nodes.
breaker = { actions = 3, within_s = 3600, open_s = 3600 }

[budget]
drain = { times = 2, within_s = 86400 }                     # nodes
exclude = { times = 4, within_s = 86400 }
page = { times = 10, within_s = 3600 }

# Broken parts of a node: the next rank on this node would fail again.
[[rule]]
id = "broken-node"
action = "drain"
otherwise = "page"
[rule.when]
class = [
    "gpu", "hbm", "sram", "gpu_system_processor", "nvlink", "nic", "ssd", "cpu", "system_memory",
    "power_supply", "chassis", "io_board", "silent_data_corruption",
]

# The node is about to be taken away. Leaving it between two steps loses no work.
[[rule]]
id = "maintenance"
when = { class = "host_maintenance" }
action = "drain"
otherwise = "exclude"

# The node is slow but sound: the room or a neighbour may be the cause. Training goes on.
[[rule]]
id = "slow-node"
when = { class = ["thermal", "straggler"], confidence = 0.5, incidents = 2 }
action = "exclude"

# Something that many nodes share. Taking one of them out would not help.
[[rule]]
id = "shared"
when = { class = ["network", "storage"], confidence = 0.5 }
action = "page"
backoff = { first_s = 600, factor = 2, most_s = 14400 }

# The cause is not known, and it is the same node again.
[[rule]]
id = "unexplained"
when = { class = "unknown", incidents = 3 }
action = "exclude"
budget = { times = 1, within_s = 86400 }

# The owner of the code can repair it. The budgets of recovery end a run that makes no progress; a
# run that makes progress is not ended for such failures.
[[rule]]
id = "software"
action = "page"
backoff = { first_s = 600, factor = 2, most_s = 14400 }
[rule.when]
class = ["user_code", "user_data", "software_bug", "dependency", "gpu_oom", "host_memory"]
confidence = 0.5
incidents = 3
within_s = 21600
"""


@functools.cache
def default_policy() -> Policy:
    return parse(TEXT, source="the default policy")
