"""outlast keeps a PyTorch training run going through the failures of its hardware."""
