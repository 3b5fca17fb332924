"""Lock files: one holder at a time, on any system."""

import errno
import fcntl
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ikno.atomic import locked_file


@pytest.mark.parametrize("windows", [False, True])
def test_one_holds_a_lock_and_others_fail_or_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool
) -> None:
    def locking(file: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    if windows:
        monkeypatch.setitem(sys.modules, "fcntl", None)
        monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    file, order = tmp_path / "lock", []

    def follow() -> None:
        with locked_file(file, wait=True):
            order.append("second")

    other = threading.Thread(target=follow)
    with locked_file(file, wait=False):
        with pytest.raises(BlockingIOError), locked_file(file, wait=False):
            pytest.fail("two at once")
        other.start()
        time.sleep(0.2)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]
    with pytest.raises(FileNotFoundError), locked_file(tmp_path / "none" / "lock", wait=True):
        pytest.fail("no folder")
