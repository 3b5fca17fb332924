"""The exception for bad input, and optional modules."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


class UserError(ValueError):
    """Bad input from a user: one line that says what is wrong, what was found, and the remedy.

    The command line prints the message without a traceback and exits with code 2. Misuse of the library raises a plain
    ``ValueError`` instead.
    """


def require(module: str, extra: str) -> ModuleType:
    """Return an optional module, or raise a UserError with the command that installs it."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise UserError(f"this needs {package}, which is not installed; get it with: pip install 'ikno[{extra}]'")
    return import_module(module)
