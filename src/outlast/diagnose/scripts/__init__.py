"""Read the text of a training script, and compare the trial runs of `outlast check`."""
