"""From physical quantities to physical quantities: what surrounds a model."""

from ikno.surrogate.normalize import Normalizer
from ikno.surrogate.rollout import STRATEGIES, path, rollout
from ikno.surrogate.surrogate import Signature, State, Surrogate, half_size

__all__ = ["STRATEGIES", "Normalizer", "Signature", "State", "Surrogate", "half_size", "path", "rollout"]
