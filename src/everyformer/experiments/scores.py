"""Scores of single examples: a file beside the results, and the runs of an arm.

`<results>.scores.npz` holds an array for each cell and metric, in the order of the test
examples, and the clusters that the examples belong to. Claims are judged from it, today or
by another's statistics tomorrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.errors import FileFormatError
from everyformer.experiments.arrays import Arrays, load_arrays, name_of

CLUSTERS = "clusters"
"""The name of the numbers that say which examples belong together."""

ROUNDING = 1e-4
"""Relative: how far the mean of stored scores may be from the result's own."""

Scores = Arrays
"""By name of a cell, then of a metric: a number for each example."""


def scores_path(results: Path) -> Path:
    """Where the scores of a file of results are."""
    return results.with_suffix(".scores.npz")


def load_scores(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """The file that `save_arrays` wrote; nothing without such a file.

    Raises:
        FileFormatError: If it is damaged, or no such file. Nothing in it is executed.
    """
    return load_arrays(path, "scores of single examples")


@dataclass(frozen=True)
class Runs:
    """Finished results and their scores, found by labels.

    Attributes:
        label: The label that names the arm of a cell.
        results: Of a report.
        scores: Of its examples.
    """

    label: str
    results: Sequence[Mapping[str, Any]]
    scores: Scores

    def of(self, cell: Mapping[str, Any], arm: str) -> dict[int, Mapping[str, Any]]:
        """The finished results of an arm, by seed."""
        wanted = {**cell, self.label: arm}.items()
        found = [r for r in self.results if r["complete"]]
        return {r["labels"]["seed"]: r for r in found if wanted <= r["labels"].items()}

    def mean(
        self, cell: Mapping[str, Any], arm: str, metric: str, split: str, seeds: set[int]
    ) -> float:
        """The mean over seeds of what the results say themselves."""
        runs = self.of(cell, arm)
        values = [runs[seed]["more"][split][metric]["mean_sampled"] for seed in seeds]
        return sum(values) / len(values)

    def scored(self, result: Mapping[str, Any], metric: str) -> np.ndarray | None:
        """The score of every test example of a result, or None if they were not kept.

        Raises:
            FileFormatError: If their mean is not that of the result: the two files are not
                of one run.
        """
        name = name_of(result["labels"])
        found = self.scores.get(name, {}).get(metric)
        if found is None:
            return None
        values, stated = found.astype(np.float64), result["more"]["test"][metric]
        mean = stated["mean_sampled"]
        if abs(float(values.mean()) - mean) > ROUNDING * max(1.0, abs(mean)):
            msg = (
                f"The stored scores of {name} have a mean {metric} of {values.mean():.6g}, "
                f"its result says {mean:.6g}: the files are not of one run. Move both, and "
                "run the cell again."
            )
            raise FileFormatError(msg)
        return values

    def clusters(self, result: Mapping[str, Any]) -> np.ndarray | None:
        """The numbers of the clusters of a result's examples."""
        name = name_of(result["labels"])
        return self.scores.get(name, {}).get(CLUSTERS)
