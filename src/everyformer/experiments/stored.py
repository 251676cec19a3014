"""Everything that an experiment keeps on the disk: results, scores, learnt positions."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.experiments.arrays import save_arrays
from everyformer.experiments.positions_picture import load_positions, positions_path
from everyformer.experiments.report import load_report
from everyformer.experiments.scores import load_scores, scores_path
from everyformer.train.run_folder import write_whole

Named = dict[str, dict[str, np.ndarray]]


@dataclass
class Stored:
    """A file of results and the arrays beside it.

    Attributes:
        report: The results.
        scores: Of single test examples, by name of a cell.
        positions: Learnt B and C, by name of a cell.
    """

    report: dict[str, Any]
    scores: Named = field(default_factory=dict[str, dict[str, np.ndarray]])
    positions: Named = field(default_factory=dict[str, dict[str, np.ndarray]])

    @classmethod
    def load(cls, path: Path) -> "Stored":
        """What `write` wrote.

        Raises:
            FileFormatError: If a file is damaged, or not what its name says.
        """
        return cls(
            load_report(path),
            load_scores(scores_path(path)),
            load_positions(positions_path(path)),
        )

    def write(self, path: Path) -> None:
        """Each file is replaced whole, the results last."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.scores:
            save_arrays(scores_path(path), self.scores)
        if self.positions:
            save_arrays(positions_path(path), self.positions)
        write_whole(path, json.dumps(self.report) + "\n")
