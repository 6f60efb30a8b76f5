"""The parts of `outlast.lightning`. Nothing here imports Lightning until one of them is imported:
the zygote imports this package for scripts that do not use it.
"""
