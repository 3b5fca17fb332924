"""Files that several processes use: written whole, and locked."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path, durable: bool = False, mark: str = "") -> Iterator[Path]:
    """Yield a temporary path that replaces the file if the block succeeds and is removed if not.

    At any moment either the old or the new file is there, whole.

    Args:
        path: The file.
        durable: Flush the new file to disk before it replaces the old one, which takes milliseconds.
        mark: Distinguishes processes that may write the same file at the same time.
    """
    partial = path.with_name(f"{path.name}{mark}.partial")
    try:
        yield partial
        if durable:
            with partial.open("r+b") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # its folder may not even exist: the error that says so is on its way
            partial.unlink(missing_ok=True)


@contextmanager
def locked_file(path: Path, wait: bool) -> Iterator[None]:
    """Hold a lock file for this process; the lock is released however the process ends.

    Raises:
        BlockingIOError: Another process holds it, and ``wait`` is false.
        OSError: The file cannot be opened or locked.
    """
    with path.open("w") as file:
        while True:
            try:
                _lock(file.fileno())
                break
            except (BlockingIOError, PermissionError):
                if not wait:
                    raise BlockingIOError(f"{path}: held by another process") from None
            time.sleep(0.1)
        yield


def _lock(file: int) -> None:
    """Lock an open file, or raise if another process has it locked."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        msvcrt: Any = import_module("msvcrt")
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
