"""The learnt B and C of every trained cell: a file beside the results, and its picture.

A_U(X) = softmax(X W_Q (X W_K)^T + B) ⊙ C        (Luo et al. 2022, Equation 8, Figure 2)
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure, SubFigure

from everyformer import figures
from everyformer.experiments.arrays import Arrays, load_arrays
from everyformer.layers.learnt_positions import toeplitz

MATRICES = 4
"""Heads of the first cell that are drawn as matrices, as the paper does."""

ABREAST = 4
"""Tables in a row of the picture."""

KEY = (
    "Small panels: a row of pixels is a head, a column an offset i − j (graphs: a "
    "distance); for windows a tile is a head.\n"
    "White changes nothing, red raises a weight, blue lowers it."
)

NEUTRAL = {"B": 0.0, "C": 1.0}
"""The value that changes nothing: it is white."""


def positions_path(results: Path) -> Path:
    """Where B and C of a file of results are."""
    return results.with_suffix(".positions.npz")


def load_positions(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """B and C by the name of a cell; nothing without such a file.

    Raises:
        FileFormatError: If it is damaged, or no such file.
    """
    return load_arrays(path, "learnt positions")


@figures.styled
def positions_picture(positions: Arrays, path: Path) -> None:
    """Above, B and C of the first cell that has both as matrices; below, of all cells."""
    cells = [(cell, name, own[name]) for cell, own in positions.items() for name in own]
    both = next((cell for cell, own in positions.items() if {"B", "C"} <= own.keys()), "")
    matrices = [entry for entry in cells if entry[0] == both]
    rows = -(-len(cells) // ABREAST)
    sizes = [1.0] * rows + [2.2] * len(matrices)
    figure = Figure(figsize=(3.4 * ABREAST, 1.6 * sum(sizes) + 0.3))
    *below, last = figure.subfigures(
        1 + len(sizes), 1, height_ratios=[*reversed(sizes), 0.3], squeeze=False
    )[:, 0]
    for part, entry in zip(below, matrices, strict=False):
        _heads(part, *entry)
    for row, part in enumerate(below[len(matrices) :]):
        panels = part.subplots(1, ABREAST)
        for axes in panels:
            axes.set_axis_off()
        shown = cells[ABREAST * row : ABREAST * (row + 1)]
        for axes, (cell, name, table) in zip(panels, shown, strict=False):
            image = table if table.ndim == 2 else np.concatenate(list(table), axis=1)
            _shown(axes, name, image, _reach(name, table))
            axes.set_title(
                f"{cell}\n{name}, up to ±{_reach(name, table):.2g}", fontsize=8.5
            )
    last.text(0.5, 0.5, KEY, ha="center", va="center", fontsize=8.5)
    figures.write(figure, path)


def _heads(part: SubFigure, cell: str, name: str, table: np.ndarray) -> None:
    """The matrices of the first heads."""
    part.suptitle(f"{cell}: {name} of heads 1 to {min(MATRICES, len(table))}", fontsize=9.5)
    matrices = table if table.ndim == 3 else toeplitz(torch.from_numpy(table)).numpy()
    panels = part.subplots(1, MATRICES, squeeze=False)[0]
    for axes in panels:
        axes.set_axis_off()
    for axes, matrix in zip(panels, matrices, strict=False):
        _shown(axes, name, matrix, _reach(name, table), aspect="equal")


def _reach(name: str, table: np.ndarray) -> float:
    """How far numbers are from what changes nothing."""
    return float(np.abs(table - NEUTRAL[name[0]]).max())


def _shown(
    axes: Any, name: str, image: np.ndarray, largest: float, *, aspect: str = "auto"
) -> None:
    middle, reach = NEUTRAL[name[0]], max(largest, 1e-9)
    axes.imshow(
        image, cmap="RdBu_r", vmin=middle - reach, vmax=middle + reach, aspect=aspect,
        interpolation="nearest",
    )  # fmt: skip
