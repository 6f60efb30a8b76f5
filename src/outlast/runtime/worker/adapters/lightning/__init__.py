"""The parts of `outlast.lightning`.

Importing this package does not import Lightning, because the zygote imports it for scripts that do
not use Lightning.
"""
