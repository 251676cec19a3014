"""Patterns drawn as pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from everyformer.patterns.drawing import density
from everyformer.patterns.part import Part

PIXELS = 400


def picture(name: str, parts: Sequence[Part]) -> Figure:
    """The parts as images, side by side; more than 400 tokens are shrunk."""
    n = parts[0].n
    figure = Figure(figsize=(0.6 + 3.2 * len(parts), 3.8), layout="constrained")
    panels: Any = figure.subplots(1, len(parts), squeeze=False)
    edges = (0.5, n + 0.5, n + 0.5, 0.5)
    for place, (axes, part) in enumerate(zip(panels[0], parts, strict=True)):
        side = min(n, PIXELS)
        shown = np.sqrt(density(part, side, side))
        axes.imshow(shown, cmap="Blues", vmin=0, vmax=1, extent=edges, interpolation="none")
        title = f"A^{place + 1}: {part.connections:,} connections"
        axes.set_title(title, loc="left", fontsize=10, parse_math=False)
        axes.set_xlabel("token heard")
        axes.set_ylabel("token k")
    figure.suptitle(f"{name}, n = {n}", fontsize=11, parse_math=False)
    return figure
