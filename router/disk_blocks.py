"""Files that are mapped into memory need all their blocks.

A process that writes into a hole of mapped memory is killed (SIGBUS) if the disk is full.
"""

import os
import sys


def allocate(file: int, size: int) -> None:
    """Makes an open file at least `size` bytes long, with all blocks. Raises OSError if the disk is full."""
    # Not for a file that has them, since it is in use, and the C library may write zeros where a file system cannot
    # allocate.
    if os.fstat(file).st_size < size:
        if sys.platform == "darwin":  # has no posix_fallocate
            os.truncate(file, size)
        else:
            os.posix_fallocate(file, 0, size)
