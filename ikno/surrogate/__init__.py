"""From physical quantities to physical quantities: what surrounds a model."""

from ikno.surrogate.normalize import Normalizer

__all__ = ["Normalizer"]
