"""The learnt B and C of every trained cell: a file beside the results, and its picture.

A_U(X) = softmax(X W_Q (X W_K)^T + B) ⊙ C        (Luo et al. 2022, Equation 8, Figure 2)
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.arrays import Arrays, load_arrays
from everyformer.layers.learnt_positions import toeplitz

MATRICES = 4
"""Heads of the first cell that are drawn as matrices, as the paper does."""

ABREAST = 3
"""Cells in a row of the picture."""

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
    """Above, B and C of the first cell that has both as matrices; below, of all cells.

    Below, a row of pixels is a head and a column an offset i - j, for graphs a distance; or
    for windows a tile is a head. White changes nothing, red raises, blue lowers a weight.
    """
    rows = -(-len(positions) // ABREAST)
    both = [own for own in positions.values() if {"B", "C"} <= own.keys()]
    shown = both[0] if both else {}
    sizes = [1.9] * len(shown) + [1.0] * rows
    figure = Figure(figsize=(4.2 * ABREAST, sum(sizes) + 0.4))
    parts = figure.subfigures(len(sizes), 1, height_ratios=sizes, squeeze=False)[:, 0]
    for part, (name, table) in zip(parts, shown.items(), strict=False):
        cell = next(cell for cell, own in positions.items() if own is shown)
        part.suptitle(f"{cell}: {name}, heads 1 to {min(MATRICES, len(table))}", fontsize=8)
        matrices = table if table.ndim == 3 else toeplitz(torch.from_numpy(table)).numpy()
        panels = part.subplots(1, MATRICES, squeeze=False)[0]
        for axes in panels:
            axes.set_axis_off()
        for axes, matrix in zip(panels, matrices, strict=False):
            _shown(axes, name, matrix, _reach(name, table), aspect="equal")
    cells = list(positions.items())
    for row, part in enumerate(parts[len(shown) :]):
        panels = part.subplots(1, 2 * ABREAST, squeeze=False)[0]
        for axes in panels:
            axes.set_axis_off()
        for place, (cell, own) in enumerate(cells[ABREAST * row : ABREAST * (row + 1)]):
            for axes, (name, table) in zip(panels[2 * place :], own.items(), strict=False):
                image = table if table.ndim == 2 else np.concatenate(list(table), axis=1)
                _shown(axes, name, image, _reach(name, table))
                axes.set_title(f"{cell} {name}, ±{_reach(name, table):.2g}", fontsize=6)
    figures.write(figure, path)


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
