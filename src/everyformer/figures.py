"""One style for all pictures: colours, ticks, legends, jumps, zeros and files.

Every picture of the library is drawn by a function that `styled` decorates, and written
by `write` or `save`. The rules are the same everywhere:

- whole numbers have ticks at whole numbers;
- a jump is a gap with a dotted line, not a steep slope;
- legends lie beside the axes, never over curves;
- curves that coincide stay visible: earlier ones are wider and lie below;
- an exact zero on a logarithmic axis has a tick of its own, "0";
- the name of the file decides the format: .png, .pdf or .svg.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from everyformer.picture_formats import format_of

Parameters = ParamSpec("Parameters")
Drawn = TypeVar("Drawn")

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)
"""Okabe and Ito's, which colour-blind readers can tell apart."""

MARKERS = "os^Dv<>P"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))

DOTS_PER_INCH = 150
MOST_TICKS = 8

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": "0.88",
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # letters stay letters, as journals ask
    "svg.fonttype": "none",
    "svg.hashsalt": "everyformer",  # the same picture is the same file
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
}


def styled(draw: Callable[Parameters, Drawn]) -> Callable[Parameters, Drawn]:
    """Draw in the style of the library, whatever the settings of the program around it."""

    @wraps(draw)
    def drawn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Drawn:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def save(figure: Figure, file: IO[bytes], path: Path = Path("picture.png")) -> None:
    """Write a picture into an open file, in the format of the name that it will have."""
    kind = format_of(path)
    dated = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=dated[kind])


def write(figure: Figure, path: Path) -> None:
    """Write a picture to a path, whose ending decides the format."""
    format_of(path)
    with path.open("wb") as file:
        save(figure, file, path)


def colour(place: int) -> str:
    """The colour of the curve with this number, from 0."""
    return COLOURS[place % len(COLOURS)]


def curve(place: int, count: int, *, marked: bool = True) -> dict[str, Any]:
    """How curve `place` of `count` looks.

    Later curves are thinner and lie above earlier ones, and have other markers and
    dashes: where two coincide, both are seen.
    """
    thin = place / max(count - 1, 1)
    look: dict[str, Any] = {
        "color": colour(place),
        "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
        "linewidth": 3 - 1.8 * thin,
        "zorder": 2 + thin / 2,
    }
    if marked:
        look["marker"] = MARKERS[place % len(MARKERS)]
        look["markersize"] = 7 - 3 * thin
    return look


def title(axes: Axes, text: str) -> None:
    """A heading at the left, in which names of users are never taken for formulas."""
    axes.set_title(text, loc="left", parse_math=False)


def legend_beside(axes: Axes, handles: Sequence[Any] | None = None) -> Legend:
    """A legend at the right of the axes, where nothing is drawn."""
    given: dict[str, Any] = {} if handles is None else {"handles": handles}
    return axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), **given)


def one_legend(figure: Figure) -> None:
    """A legend beside all panels, with each label once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        figure.legend(found.values(), found.keys(), loc="outside right center")


def whole_numbers(*axes: Axis, most: int = 9) -> None:
    """Ticks at whole numbers alone, with commas in large ones."""
    for axis in axes:
        axis.set_major_locator(
            MaxNLocator(most, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        )
        axis.set_major_formatter(FuncFormatter(_whole_tick))


def tick_each(axis: Axis, values: Sequence[float]) -> None:
    """A tick at every value that was measured; at most eight, with both ends."""
    ordered = sorted({float(value) for value in values})
    if len(ordered) > MOST_TICKS:
        places = np.linspace(0, len(ordered) - 1, MOST_TICKS).round().astype(int)
        ordered = [ordered[i] for i in places]
    axis.set_major_locator(FixedLocator(ordered))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_readable_tick))


def logarithmic(axis: Axis, base: int = 10) -> None:
    """A logarithmic axis whose ticks are numbers as one says them."""
    axes = axis.axes
    scale = axes.set_xscale if axis.axis_name == "x" else axes.set_yscale  # pyright: ignore
    scale("log", base=base)
    low, high = sorted(axis.get_data_interval())
    known = low > 0 and math.isfinite(high)
    decades = math.log10(high / low) if known else 9.0
    marked = (1.0,) if decades > 2 else (1.0, 2.0, 5.0)
    if base == 10:
        axis.set_major_locator(LogLocator(base, subs=marked, numticks=12))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_readable_tick))


def readable_ticks(axis: Axis) -> None:
    """Numbers as one says them, at the ticks that are there."""
    axis.set_major_formatter(FuncFormatter(_readable_tick))


def readable(value: float) -> str:
    """A number on an axis: 0.02, 500, 65,536, or a power of ten."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.6g}"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    factor = value / 10.0**exponent
    lead = "" if abs(factor - 1) < 1e-6 else f"{factor:.3g} \\cdot "
    return f"${lead}10^{{{exponent}}}$"


def _readable_tick(value: float, _: int | None = None) -> str:
    return readable(value)


def _whole_tick(value: float, _: int | None = None) -> str:
    return f"{round(value):,}"


def broken_at(x: np.ndarray, y: np.ndarray, jumps: np.ndarray) -> tuple[Any, Any]:
    """The curve with a gap between x[i] and x[i + 1] for each i in `jumps`."""
    places = np.asarray(jumps, dtype=int) + 1
    return np.insert(x, places, np.nan), np.insert(y, places, np.nan)


def plot_with_jumps(
    axes: Axes, x: np.ndarray, y: np.ndarray, jumps: np.ndarray, **look: Any
) -> None:
    """A curve that jumps between x[i] and x[i + 1], with dotted lines across the jumps."""
    places = np.asarray(jumps, dtype=int)
    middle = (x[places] + x[places + 1]) / 2
    below, above = y[places], y[places + 1]
    axes.vlines(
        middle, below, above, colors=look.get("color", "0.5"), linestyles=":", linewidth=0.8
    )
    axes.plot(*broken_at(x, y, places), **look)


def place_of_zero(values: Sequence[float]) -> float:
    """Where exact zeros lie on a logarithmic axis: two decades below all other numbers."""
    positive = [value for value in values if value > 0]
    return 10.0 ** (math.floor(math.log10(min(positive, default=1.0))) - 2)


def plot_with_zeros(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    zero: float,
    place: int,
    count: int,
    **more: Any,
) -> None:
    """Curve `place` of `count` on a logarithmic axis; exact zeros are not joined to it.

    Markers at zero are hollow, and those of later curves lie inside those of earlier ones:
    where several curves are 0, all are seen.
    """
    look = curve(place, count)
    axes.plot(x, np.where(y > 0, y, np.nan), **look, **more)
    step = min(3.0, 9 / max(count - 1, 1))
    rings: dict[str, Any] = {
        "linestyle": "",
        "markerfacecolor": "none",
        "markersize": 4 + step * (count - 1 - place),
    }
    at_zero = x[y == 0]
    axes.plot(at_zero, np.full(len(at_zero), zero), **(look | rings))


def mark_zero(axis: Axis, zero: float) -> None:
    """Label the place of exact zeros "0", and rule a line between it and the numbers."""
    axes = axis.axes
    along = axis.axis_name == "x"  # pyright: ignore
    shared = axes.get_shared_x_axes() if along else axes.get_shared_y_axes()
    for panel in shared.get_siblings(axes):
        rule = panel.axvline if along else panel.axhline
        rule(zero * 10**0.8, color="0.6", linewidth=0.8, linestyle=(0, (1, 3)))
    usual = axis.get_major_locator()

    def ticks() -> list[float]:
        return [zero, *(value for value in usual() if value > zero * 10**0.9)]

    low, high = axis.get_view_interval()
    set_limits = axes.set_xlim if along else axes.set_ylim
    set_limits(zero / 10**0.5, max(low, high))

    def text(value: float, _: int | None = None) -> str:
        return "0" if value < zero * 1.01 else readable(value)

    axis.set_major_locator(FixedLocator(ticks()))
    axis.set_major_formatter(FuncFormatter(text))
