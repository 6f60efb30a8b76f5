"""A process beside the ranks of a node writes their checkpoints to the disk.

A rank captures its image: it copies its shard of the state into memory that it shares with this
process, and trains on. The process has the lowest priority.

    captured.py         a rank's memory for one image, and how the rank hands it over
    write_orders.py     what ranks, launcher and process say to each other
    writer_program.py   the program of the process
    writer_process.py   the launcher's end, which starts, watches and replaces the process
    direct_disk.py      writes that go past the kernel's cache
"""
