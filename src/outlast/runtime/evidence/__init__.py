"""Turn files into findings: a walk through folders and archives, and processes that read dumps."""
