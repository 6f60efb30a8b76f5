"""The coordinator, which leads a run, and its parts. machine.py says what each part does."""
