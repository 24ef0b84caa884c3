"""`lineage`, as it is installed, and `python -m lineage`."""

import gc

gc.set_threshold(100_000)  # of loaded modules, and of the small values of designs, next to none is garbage


def script() -> None:
    """Run the command line and end the process."""
    from lineage.cli import main
    from lineage.terminal import leave

    leave(main)


if __name__ == "__main__":
    script()
