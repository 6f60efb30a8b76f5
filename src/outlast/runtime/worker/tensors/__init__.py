"""Tensors of modules, optimizers and generators: how they are found, split, copied and set."""
