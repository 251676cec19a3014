"""Curves of training, what each arm reaches, and the learnt C by distance."""

import statistics
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.experiments.curves import Results, by_step, draw_band, having
from everyformer.experiments.positions_picture import load_positions, positions_path
from everyformer.experiments.urpe_wikitext.plan import ARMS

MEMORIES = {"nats": "memory of training", "long": "longer memory"}
"""What the scores of a test are called in the picture."""

PANELS = 12
"""Gains that are drawn, at most."""


@figures.styled
def picture(results: Results, path: Path) -> None:
    """Above, curves and results; below, C against distance, a panel for each gain."""
    texts: list[str] = [r["labels"]["text"] for r in results]
    text = next((name for name in texts if not name.endswith("-rate")), "")
    own = having(results, text=text)
    gains = _gains(text, path)
    rows = -(-len(gains) // 4)
    figure = Figure(figsize=(11, 3.4 + 2.2 * rows))
    above, *below = figure.subfigures(
        1 + rows, 1, height_ratios=[3.4, *[2.2] * rows], squeeze=False
    )[:, 0]
    left, right = above.subplots(1, 2)
    _curves(left, own)
    _reached(right, own)
    if right.lines:
        figures.legend_beside(right)
    elif left.lines:
        figures.legend_beside(left)
    for row, part in enumerate(below):
        panels = part.subplots(1, 4)
        for axes, (name, table) in zip(panels, gains[4 * row : 4 * row + 4], strict=False):
            _by_distance(axes, name, table)
        panels[0].set_ylabel("a line for each head")
        for axes in panels[len(gains[4 * row : 4 * row + 4]) :]:
            axes.set_axis_off()
    figures.write(figure, path)


def _curves(axes: Axes, results: Results) -> None:
    """Nats on validation text against updates; the band holds all seeds."""
    for place, arm in enumerate(ARMS):
        if evaluated := by_step(having(results, arm=arm), "nats"):
            look = figures.curve(place, len(ARMS), marked=False)
            draw_band(axes, evaluated, look, arm)
    figures.title(axes, "validation text")
    axes.set(xlabel="updates", ylabel="nats per word")


def _reached(axes: Axes, results: Results) -> None:
    """Test perplexity of every seed, with the memory of training and with a longer one."""
    done = [r for r in results if r["complete"]]
    names: list[str] = list(dict.fromkeys(n for r in done for n in r["more"]["test"]))
    memories: list[str] = [MEMORIES.get(name, name) for name in names]
    for place, arm in enumerate(ARMS):
        own = [r["more"]["perplexity"] for r in having(done, arm=arm)]
        if not own:
            continue
        values = [[found[name] for found in own] for name in names]
        look = figures.curve(place, len(ARMS), marked=False)
        axes.plot(memories, [statistics.fmean(v) for v in values], label=arm, **look)
        for memory, found in zip(memories, values, strict=True):
            axes.plot([memory] * len(found), found, ".", ms=5, color=look["color"])
    figures.title(axes, "test text: all seeds, and their mean")
    axes.set_ylabel("perplexity")
    axes.margins(x=0.15)


def _gains(text: str, path: Path) -> list[tuple[str, np.ndarray]]:
    """C of the first seed of each arm, by distance: (heads, distances)."""
    found: list[tuple[str, np.ndarray]] = []
    seen: set[str] = set()
    for cell, tables in load_positions(positions_path(path)).items():
        own, arm, *_ = cell.split("/")
        if own != text or arm in seen:
            continue
        seen.add(arm)
        for name, table in tables.items():
            if name.startswith("C"):
                found.append((f"{arm} {name}", table[:, table.shape[1] // 2 :]))
    return found[:PANELS]


def _by_distance(axes: Axes, name: str, table: np.ndarray) -> None:
    """A line for each head."""
    for head, row in enumerate(table):
        look = figures.curve(head, len(table), marked=False)
        look["linewidth"] = 0.8
        axes.plot(np.arange(1, len(row) + 1), row, **look)
    axes.axhline(1.0, color="0.3", ls=":", lw=1)
    figures.logarithmic(axes.xaxis)
    figures.title(axes, name)
    axes.set_xlabel("distance + 1")
