"""The start of a worker: the zygote that forks it, and what happens before the script."""
