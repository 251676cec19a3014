"""Draw the picture of README.md: `make pictures`, or `python docs/pictures/draw.py`.

One input on its way through a network of Theorem 3, and the function beside the network.
Every number in it is computed here.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import everyformer as ef
from everyformer import figures

GRID = 8
X = np.array([[0.3], [0.8]])
PIXELS = 400
FOLDER = Path(__file__).parent


def swing(x: np.ndarray) -> np.ndarray:
    """sin(3 x_j) times the mean of the tokens."""
    return np.sin(3 * x) * x.mean(-2, keepdims=True)


@figures.styled
def how_it_works() -> Figure:
    """Input, quantise, ids, values; then f beside g, as functions of both tokens."""
    built = ef.construct(ef.Target(swing, seq_len=2, d_model=1), grid=GRID)
    network = built.network
    states = {step.stage: step.state.ravel() for step in network.trace(X)}
    positions = states["input"] - X.ravel()
    figure = Figure(figsize=(12.6, 3.1))
    panels: Any = figure.subplots(1, 6, width_ratios=[1, 1, 1, 1, 1.75, 1.75])
    moved = (X.ravel(), states["quantise"] - positions)
    for axes, values, title in zip(panels, moved, ("input x", "→ quantise"), strict=False):
        _tokens(axes, values, title)
        axes.set_ylim(0, 1)
        axes.set_yticks(np.arange(GRID + 1) / GRID, ["0", *[""] * (GRID - 1), "1"])
    _tokens(panels[2], states["selective shifts"], "→ ids")
    panels[2].set_yscale("log")
    panels[2].set_ylim(5, 250)
    figures.readable_ticks(panels[2].yaxis)
    values = network(X).ravel()
    f = swing(X).ravel()
    panels[3].plot([1, 2], f, "o", ms=13, mfc="none", mec="0.4", label="f")
    _tokens(panels[3], values, "→ values g(x)")
    panels[3].annotate("ring: f(x)", (0.05, 0.06), xycoords="axes fraction", color="0.35")
    panels[3].set_ylim(0.15, 0.65)
    along = (np.arange(PIXELS) + 0.5) / PIXELS
    plane = np.stack(np.meshgrid(along, along), axis=-1)[..., None]  # [x_2, x_1, 2, 1]
    images = {"function f": swing(plane), "network g": network(plane)}
    top = float(images["function f"].max())
    for axes, (name, shown) in zip(panels[4:], images.items(), strict=True):
        box = {"origin": "lower", "extent": (0, 1, 0, 1)}
        axes.imshow(shown[..., 0, 0], cmap="viridis", vmin=0, vmax=top, **box)
        axes.plot(*X.ravel(), "o", ms=7, mfc="none", mec="white", mew=1.6)
        axes.grid(visible=False)
        axes.set(xticks=(0, 1), yticks=(0, 1), xlabel="token 1", ylabel="token 2")
        figures.title(axes, f"{name}, output of token 1")
    for axes, lemma in zip(panels, ("", "Lemma 5", "Lemma 6", "Lemma 7"), strict=False):
        axes.set_xlabel(f"token\n{lemma}")
    return figure


def _tokens(axes: Axes, values: np.ndarray, title: str) -> None:
    """Two tokens as dots, with their numbers."""
    for j, value in enumerate(values):
        axes.plot(j + 1, value, "o", ms=8, color=figures.colour(j))
        axes.annotate(
            f"{value:.4g}", (j + 1, value), (0, 11), textcoords="offset points", ha="center"
        )
    axes.set_xlim(0.4, 2.6)
    axes.set_xticks((1, 2))
    axes.grid(visible=False, axis="x")
    figures.title(axes, title)


if __name__ == "__main__":
    figures.write(how_it_works(), FOLDER / "how_it_works.png")
