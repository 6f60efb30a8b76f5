"""From files to findings: a walk through folders and archives, and processes that read dumps."""
