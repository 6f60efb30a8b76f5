"""The simulated world: nodes, links, processes and disks, in virtual time."""
