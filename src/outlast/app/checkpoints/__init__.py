"""`outlast ckpt`: options and words."""
