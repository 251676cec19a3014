"""What GLUE reports: Matthews' and Pearson's correlation, F1, accuracy.

Letters: of two classes tp, tn are right, fp, fn wrong; positive is class 1.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np


def matthews(predicted: np.ndarray, labels: np.ndarray) -> float:
    """(tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn)); 0 where that is 0 / 0.

    Example:
        >>> matthews(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
        0.5773502691896258
    """
    p, y = predicted.astype(bool), labels.astype(bool)
    tp, tn, fp, fn = (
        int(one.sum()) for one in (p & y, ~p & ~y, p & ~y, ~p & y)
    )  # fmt: skip
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(below) if below else 0.0


def f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """2 tp / (2 tp + fp + fn); 0 where that is 0 / 0."""
    p, y = predicted.astype(bool), labels.astype(bool)
    below = int(p.sum()) + int(y.sum())
    return 2 * int((p & y).sum()) / below if below else 0.0


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of two rows of numbers; 0 where one of them is constant."""
    x, y = (one.astype(np.float64) - one.mean(dtype=np.float64) for one in
            (predicted, labels))  # fmt: skip
    below = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(x @ y) / below if below else 0.0


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The share that is right."""
    return float((predicted == labels).mean())


METRICS: Mapping[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "cola": ("Matthews", matthews),
    "sst-2": ("accuracy", accuracy),
    "mrpc": ("F1", f1),
    "rte": ("accuracy", accuracy),
    "sts-b": ("Pearson", pearson),
}
"""By task: the name of its metric, and the function of predictions and labels."""


def with_error(
    task: str, predicted: np.ndarray, labels: np.ndarray, draws: int = 400
) -> tuple[float, float]:
    """The metric of a task, and its standard error over examples drawn anew."""
    metric = METRICS[task][1]
    generator = np.random.default_rng(0)
    found: list[float] = []
    for _ in range(draws):
        some = generator.integers(0, len(labels), len(labels))
        found.append(metric(predicted[some], labels[some]))
    return metric(predicted, labels), float(np.std(found, ddof=1))
