"""Errors at the human boundary."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


class UserError(Exception):
    """Bad input from a person: one line that says what, where and the remedy.

    The command line prints it without a traceback and exits with code 2.
    """


def require(module: str, extra: str) -> ModuleType:
    """Return an optional module, or raise a UserError with the command that installs it."""
    if find_spec(module.partition(".")[0]) is None:
        raise UserError(f"this needs {module.partition('.')[0]}; install it with: pip install 'ikno[{extra}]'")
    return import_module(module)
