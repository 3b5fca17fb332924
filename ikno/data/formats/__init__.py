"""File formats. Every module of this folder is loaded: a new format is one new file here."""

from importlib import import_module
from pkgutil import iter_modules

from ikno.data.formats.format import (
    FORMATS,
    DataFile,
    Format,
    Mesh,
    check_file,
    format_of,
    open_file,
    open_mesh,
    readable,
    register,
    suffixes,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "FORMATS",
    "DataFile",
    "Format",
    "Mesh",
    "check_file",
    "format_of",
    "open_file",
    "open_mesh",
    "readable",
    "register",
    "suffixes",
]
