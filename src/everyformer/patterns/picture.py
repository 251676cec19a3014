"""Patterns drawn as pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from everyformer import figures
from everyformer.patterns.drawing import density
from everyformer.patterns.part import Part

PIXELS = 400
RULED = 32
"""Up to so many tokens there are lines between the cells."""


@figures.styled
def picture(name: str, parts: Sequence[Part]) -> Figure:
    """The parts as images, side by side; more than 400 tokens are shrunk."""
    n = parts[0].n
    figure = Figure(figsize=(0.6 + 3.2 * len(parts), 3.8))
    panels: Any = figure.subplots(1, len(parts), squeeze=False)
    edges = (0.5, n + 0.5, n + 0.5, 0.5)
    for place, (axes, part) in enumerate(zip(panels[0], parts, strict=True)):
        side = min(n, PIXELS)
        shown = np.sqrt(density(part, side, side))
        axes.imshow(
            shown, cmap="Blues", vmin=0, vmax=1.2, extent=edges, interpolation="none"
        )
        figures.whole_numbers(axes.xaxis, axes.yaxis)
        axes.grid(visible=False)
        if n <= RULED:
            between = np.arange(1, n) + 0.5
            axes.hlines(between, 0.5, n + 0.5, colors="white", linewidth=0.8)
            axes.vlines(between, 0.5, n + 0.5, colors="white", linewidth=0.8)
        figures.title(axes, f"A^{place + 1}: {part.connections:,} connections")
        axes.set_xlabel("token heard")
        axes.set_ylabel("token k")
    figure.suptitle(f"{name}, n = {n}", parse_math=False)
    return figure
