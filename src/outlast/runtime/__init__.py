"""A real run: the only clocks, files, sockets, threads and processes, and torch."""
