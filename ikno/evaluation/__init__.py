"""Evaluation and prediction: from runs to numbers, fields and files."""

from ikno.evaluation.baselines import baselines, nearest
from ikno.evaluation.evaluate import (
    Fields,
    as_json,
    collect,
    evaluate,
    evaluate_surrogate,
    fields,
    load_evaluation,
    measure_of,
    part,
    problem_of,
    save_evaluation,
)
from ikno.evaluation.predict import Predicted, predict_file

__all__ = [
    "Fields",
    "Predicted",
    "as_json",
    "baselines",
    "collect",
    "evaluate",
    "evaluate_surrogate",
    "fields",
    "load_evaluation",
    "measure_of",
    "nearest",
    "part",
    "predict_file",
    "problem_of",
    "save_evaluation",
]
