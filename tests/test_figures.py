"""What every picture keeps to: whole ticks, jumps, zeros, legends, formats, one style."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend

import everyformer as ef
from everyformer import figures
from everyformer.bench.themes import THEMES, load
from everyformer.checks.subject import Subject
from everyformer.cli import attention_pictures, pictures
from everyformer.errors import InputError
from everyformer.experiments.registry import EXPERIMENTS
from everyformer.layers import RelativeAttention

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "everyformer"


def swap_mean(x: np.ndarray) -> np.ndarray:
    return x.mean(-2, keepdims=True) - 0.5 * x


@pytest.fixture(scope="module")
def built() -> ef.Built:
    target = ef.Target(swap_mean, seq_len=3, d_model=1, equivariant=True)
    return ef.construct(target, grid=4)


def step(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0.37, 1.0, 0.0)


def drawn(figure: Figure) -> Figure:
    """The figure, after everything has its place."""
    FigureCanvasAgg(figure).draw()
    return figure


def caught(draw: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The figure that a function would write."""
    found: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        assert path.suffix == ".png"
        found.append(figure)

    monkeypatch.setattr(figures, "write", keep)
    draw(Path("no/such/folder/picture.png"))
    (figure,) = found
    return drawn(figure)


def legends(figure: Figure) -> list[Legend]:
    beside = [axes.get_legend() for axes in figure.axes]
    return [one for one in (*beside, *figure.legends) if one is not None]


def assert_clear(figure: Figure) -> None:
    """No legend lies over axes, and none is cut off."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for legend in legends(figure):
        box = legend.get_window_extent(renderer)
        for axes in figure.axes:
            area = axes.get_window_extent(renderer)
            across = min(box.x1, area.x1) - max(box.x0, area.x0)
            along = min(box.y1, area.y1) - max(box.y0, area.y0)
            assert across <= 0 or along <= 0, (axes.get_title("left"), across, along)
        assert figure.bbox.x0 - 1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1


def is_whole(axes: Axes, name: str) -> bool:
    axis = getattr(axes, f"{name}axis")
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_ticklocs() if low <= tick <= high]
    return bool(ticks) and all(tick == round(tick) for tick in ticks)


PICTURES = {name: load(name).picture for name in THEMES if hasattr(load(name), "picture")}
RESULTS = {
    path.stem.split("_")[0]: path
    for folder in ("experiments", "benchmarks")
    for path in sorted((ROOT / folder / "results").glob("*.json"), reverse=True)
    if path.stem.split("_")[0] in {*EXPERIMENTS, *PICTURES}
}
"""One file for each experiment and each benchmark that is drawn."""


@pytest.mark.parametrize("name", RESULTS)
def test_pictures_of_stored_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every experiment and every benchmark; depths, layers and updates are whole."""
    report: dict[str, Any] = json.loads(RESULTS[name].read_text())
    if "experiment" in report:
        draw = EXPERIMENTS[report["experiment"]].picture
        figure = caught(lambda path: draw(report["results"], path), monkeypatch)
        assert all(is_whole(axes, "x") for axes in figure.axes)
    else:
        figure = caught(lambda path: PICTURES[name](report, path), monkeypatch)
        named = [line for axes in figure.axes for line in axes.lines]
        empty = [one.get_label() for one in named if not np.size(one.get_xdata())]
        assert all(str(label).startswith("_") for label in empty), "named, but not drawn"
    assert_clear(figure)
    assert all(axes.has_data() for axes in figure.axes), "an empty panel"


def test_a_run_of_one_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line through one point is not drawn: the marker is."""
    cells = [("t5", 3), ("none", 1)]
    results = [
        {
            "labels": {"task": "pi", "tokens": 10, "method": method},
            "more": {
                "chance": 0.1,
                "curve": [{"step": 100 * k, "accuracy": 0.1} for k in range(count)],
            },
        }
        for method, count in cells
    ]
    draw = EXPERIMENTS["urpe-synthetic"].picture
    figure = caught(lambda path: draw(results, path), monkeypatch)
    (single,) = (line for line in figure.axes[0].lines if line.get_label() == "none")
    assert single.get_marker() not in ("", "None", None)
    assert single.get_markevery() == [-1]


def test_collisions_are_at_zero_and_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap of 0 has a tick "0"; no line leads from it to a positive number.

    Where two mixers collide, the marker of one lies inside that of the other.
    """
    gaps = {1: 0.0, 2: 0.0, 3: 1e-3, 4: 2e-3}
    results = [
        {
            "labels": {"stack": stack, "mixer": mixer, "depth": depth},
            "value_sampled": gap,
        }
        for depth, gap in gaps.items()
        for stack in ("alone", "with feed-forward")
        for mixer in ("separable", "average")
    ]
    draw = EXPERIMENTS["contextual-gap"].picture
    axes, other = caught(lambda path: draw(results, path), monkeypatch).axes
    curve, zeros, _, inner, rule = axes.lines
    assert zeros.get_markersize() > inner.get_markersize()
    assert zeros.get_markerfacecolor() == inner.get_markerfacecolor() == "none"
    assert np.array_equal(other.lines[-1].get_ydata(), rule.get_ydata()), "one rule each"
    assert np.isnan(np.asarray(curve.get_ydata(), dtype=float)[:2]).all()
    assert zeros.get_linestyle() == "None"
    ticks = dict(zip(axes.get_yticks(), axes.get_yticklabels(), strict=True))
    place = float(np.asarray(zeros.get_ydata())[0])
    assert ticks[place].get_text() == "0"
    assert place < 1e-4


def test_f_and_g_with_jumps(built: ef.Built) -> None:
    """Constant pieces end at the cells' edges; g = 0 is marked; nothing is sloped."""
    target = ef.Target(swap_mean, seq_len=3, d_model=1, equivariant=True)
    figure = drawn(pictures.along_a_line(target, built.network))
    assert_clear(figure)
    (axes,) = figure.axes
    g = axes.lines[0]
    x, y = (np.asarray(values, dtype=float) for values in g.get_data())
    gaps = np.flatnonzero(np.isnan(x))
    edges = (x[gaps - 1] + x[gaps + 1]) / 2
    assert np.allclose(edges * 4, np.round(edges * 4))
    for piece in np.split(y, gaps):
        assert np.ptp(piece[~np.isnan(piece)]) < 1e-9
    labels = [text.get_text() for text in legends(figure)[0].get_texts()]
    assert labels[-1] == "g = 0, exactly"


def test_f_that_jumps_is_drawn_with_a_gap() -> None:
    """Where f jumps, off the grid; a steep slope is no jump."""
    steep = ef.Target(lambda x: np.tanh(200 * (x - 0.5)), seq_len=1, d_model=1)
    found: dict[str, np.ndarray] = {}
    for name, target in {
        "jump": ef.Target(step, seq_len=1, d_model=1),
        "slope": steep,
    }.items():
        network = ef.construct(target, grid=4, method="averaging").network
        dashed = pictures.along_a_line(target, network).axes[0].lines[1]
        x = np.asarray(dashed.get_xdata(), dtype=float)
        found[name] = x[np.flatnonzero(np.isnan(x)) - 1]
    assert found["jump"] == pytest.approx([0.37], abs=1e-9)
    assert found["slope"].size == 0


def test_curves_that_coincide_are_both_seen() -> None:
    """Later ones are thinner, lie above, and look different."""
    looks = [figures.curve(place, 10) for place in range(10)]
    widths = [look["linewidth"] for look in looks]
    orders = [look["zorder"] for look in looks]
    assert widths == sorted(widths, reverse=True)
    assert orders == sorted(orders)
    kinds = {(look["color"], str(look["linestyle"])) for look in looks}
    assert len(kinds) == 10


def test_ids_patterns_and_attention(built: ef.Built) -> None:
    """Shifts, tokens and positions are whole numbers; legends are beside."""
    x = np.array([[0.1], [0.5], [0.9]])
    shifts = built.network.trace_blocks(x, "selective shifts")
    moving = drawn(pictures.moving_ids(shifts, built.network))
    assert is_whole(moving.axes[0], "x")
    assert_clear(moving)
    pattern = drawn(ef.patterns.star(4).picture())
    assert all(is_whole(axes, name) for axes in pattern.axes for name in "xy")
    layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=7)
    made = attention_pictures.of_subject(Subject.of(layer, 7, 8, "t5+urpe"))
    assert len(made) == 3
    for name, figure in made.items():
        assert is_whole(drawn(figure).axes[0], "x"), name
        assert_clear(figure)


def test_comparison_of_methods() -> None:
    """A bound far below the tolerance does not squeeze the others together."""
    figure = drawn(pictures.comparison(ef.compare(ef.targets.reverse(2, 1), tol=0.3)))
    assert_clear(figure)
    bottom, top = figure.axes[0].get_ylim()
    assert (bottom, top) == (pytest.approx(0.03), pytest.approx(top))
    assert top / bottom < 1e3
    assert is_whole(figure.axes[1], "x")


def test_numbers_of_bounds_far_below_do_not_meet() -> None:
    figure = drawn(pictures.comparison(ef.compare(ef.targets.centring(2, 1), tol=0.1)))
    renderer = FigureCanvasAgg(figure).get_renderer()
    notes = [one for one in figure.axes[0].texts if "far below" in one.get_text()]
    one, other = (note.get_window_extent(renderer) for note in notes)
    assert not one.overlaps(other)


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("A.SVG", b"<?xml")]
)
def test_the_name_decides_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    first, second = tmp_path / name, tmp_path / f"second-{name}"
    for path in (first, second):
        figures.write(ef.patterns.star(3).picture(), path)
    assert first.read_bytes().startswith(begins)
    assert first.read_bytes() == second.read_bytes(), "the same picture, another file"


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt", ".png", "a.pngx"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"ends in \.png, \.pdf or \.svg"):
        figures.write(Figure(), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.02, "0.02"),
        (65536, "65,536"),
        (250075, "250,075"),
        (1e6, "$10^{6}$"),
        (2e-5, "$2 \\cdot 10^{-5}$"),
        (-0.5, "-0.5"),
    ],
)
def test_readable_numbers(value: float, text: str) -> None:
    assert figures.readable(value) == text


def test_settings_of_the_caller_stay_and_do_not_matter() -> None:
    with mpl.rc_context({"font.size": 40, "axes.spines.top": True}):
        before = dict(mpl.rcParams)
        axes = ef.patterns.star(3).picture().axes[0]
        assert dict(mpl.rcParams) == before
    assert not axes.spines["top"].get_visible()
    assert axes.title.get_fontsize() < 15


def test_one_module_writes_files_and_sets_colours() -> None:
    """`savefig` and colours of their own are nowhere else; every picture is styled."""
    for path in SOURCES.rglob("*.py"):
        if path == SOURCES / "figures.py":
            continue
        text = path.read_text()
        assert "savefig" not in text, path
        if "matplotlib" not in text:
            continue
        assert not re.search(r'"C\d"|f"C\{', text), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(call, ast.Call) and ast.unparse(call.func) == "Figure"
                for call in ast.walk(node)
            ):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                assert "figures.styled" in marks, (path, node.name)
