"""Evaluation and prediction: from runs to numbers, fields and files."""

from ikno.evaluation.calibrate import calibrate
from ikno.evaluation.evaluate import (
    Fields,
    as_json,
    collect,
    evaluate,
    evaluate_surrogate,
    fields,
    load_evaluation,
    save_evaluation,
)
from ikno.evaluation.predict import Predicted, PredictionRequest, predict
from ikno.evaluation.rollouts import STRATEGIES, path, problem_of, rollout

__all__ = [
    "STRATEGIES",
    "Fields",
    "Predicted",
    "PredictionRequest",
    "as_json",
    "calibrate",
    "collect",
    "evaluate",
    "evaluate_surrogate",
    "fields",
    "load_evaluation",
    "path",
    "predict",
    "problem_of",
    "rollout",
    "save_evaluation",
]
