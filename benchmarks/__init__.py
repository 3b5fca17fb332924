"""Benchmarks that print tables: ``python -m benchmarks.contraction``, ``.resolvents``, ``.step``, ``.aircraft``."""
