"""The same small training for outlast, torchrun and torchft, for `outlast drill --against`.

gpt.py               the model, the batch of a step, and the lines that a drill reads
with_outlast.py      the training under `outlast run`
with_torchrun.py     under torchrun, with checkpoints by torch.save or by DCP
with_torchft.py      one replica under torchft
torchft_replicas.py  starts all of them, and replaces those that end
rank.py              runs a script as one rank that a drill can strike
"""
