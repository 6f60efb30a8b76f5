"""A progress bar, as tqdm is one."""


def progress(steps):
    for number, step in enumerate(steps, 1):
        yield step
        if number % 50 == 0:
            print(f"{number} done")
