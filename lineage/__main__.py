"""`lineage`, as it is installed, and `python -m lineage`."""

from lineage.cli import main
from lineage.terminal import leave


def script() -> None:
    """Run the command line and end the process."""
    leave(main)


if __name__ == "__main__":
    script()
