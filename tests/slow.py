"""The command line on a disk that takes its time, so that it can be caught at its work."""

import os
import sys
import time
from typing import BinaryIO

from lineage import cli
from lineage.checkpoint import journal, moving

PAUSE = float(os.environ.get("PAUSE", "0.01"))  # seconds before each piece
kernel = os.copy_file_range


def copy_file_range(*arguments: int) -> int:
    time.sleep(PAUSE)
    return kernel(*arguments)


moving.PIECE = 1 << 20
journal.LEAST = 1
os.copy_file_range = copy_file_range
if "export" in sys.argv:
    from lineage import exporting

    put = exporting.put

    def slowly(file: BinaryIO, piece: bytes | memoryview) -> None:
        time.sleep(PAUSE)
        put(file, piece)

    exporting.put = slowly

if __name__ == "__main__":
    cli.main()
