"""Files that appear whole: at any moment either the old or the new one is there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path, durable: bool = False, mark: str = "") -> Iterator[Path]:
    """Yield a place to write to, which becomes the file if the block ends well and vanishes if not.

    With ``durable`` it is on the disk before the old file goes, which takes milliseconds. ``mark`` keeps apart the
    processes that may write the same file at the same time.
    """
    partial = path.with_name(f"{path.name}{mark}.partial")
    try:
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with suppress(OSError):  # its folder may not even exist: the error that says so is on its way
            partial.unlink(missing_ok=True)
