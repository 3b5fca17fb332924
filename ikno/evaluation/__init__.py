"""Evaluation and prediction: from runs to numbers, fields and files."""

from ikno.evaluation.baselines import baselines, nearest
from ikno.evaluation.calibrate import calibrate, measure_ensemble, measure_intervals
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
from ikno.evaluation.predict import Predicted, PredictionRequest, predict, predict_file
from ikno.evaluation.rollouts import measure_of, part, problem_of

__all__ = [
    "Fields",
    "Predicted",
    "PredictionRequest",
    "as_json",
    "baselines",
    "calibrate",
    "collect",
    "evaluate",
    "evaluate_surrogate",
    "fields",
    "load_evaluation",
    "measure_ensemble",
    "measure_intervals",
    "measure_of",
    "nearest",
    "part",
    "predict",
    "predict_file",
    "problem_of",
    "save_evaluation",
]
