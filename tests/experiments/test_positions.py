"""The learnt B and C of every trained cell are kept beside the results, and drawn."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from everyformer import figures
from everyformer.errors import FileFormatError
from everyformer.experiments.positions_picture import (
    load_positions,
    positions_path,
    positions_picture,
)
from everyformer.experiments.reproduce import reproduce, show
from everyformer.experiments.urpe_synthetic import URPE_SYNTHETIC


def test_b_and_c_of_every_cell_are_kept_and_drawn(tmp_path: Path) -> None:
    path = reproduce(
        URPE_SYNTHETIC,
        "smoke",
        out=tmp_path,
        runs=tmp_path / "runs",
        only=["pi/urpe/*", "pi/t5/*", "pi/none/*"],
        changes={"steps": 6, "evaluate_every": 6, "lr": 0.01},
    )
    stored = positions_path(path)
    found = load_positions(stored)
    assert {cell: list(own) for cell, own in found.items()} == {
        "pi/urpe/10/0": ["B", "C"],
        "pi/t5/10/0": ["B"],
    }
    gain = found["pi/urpe/10/0"]["C"]
    assert gain.shape == (2, 2 * 8 - 1)
    assert np.abs(gain - 1).max() > 1e-3, "it was learnt"
    picture = stored.with_suffix(".png")
    assert picture.stat().st_size > 5_000
    picture.unlink()
    show(URPE_SYNTHETIC, path)
    assert picture.exists()
    stored.write_bytes(b"no arrays")
    with pytest.raises(FileFormatError, match="cannot be read as learnt positions"):
        load_positions(stored)


def test_windows_and_cells_without_a_gain_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A panel for each table, and long titles of neighbours do not touch."""
    made: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        assert path.suffix == ".png"
        made.append(figure)

    monkeypatch.setattr(figures, "write", keep)
    table = np.linspace(-1, 1, 2 * 9, dtype=np.float32).reshape(2, 3, 3)
    many = {f"zinc12k/graphormer+urpe/{k}": {"B": table} for k in range(5)}
    both = many | {"x": {"B": table, "C": table}}
    for positions, panels in ((many, 5), (both, 5 + 2 + 2 * 2)):
        positions_picture(positions, Path("picture.png"))
        figure = made.pop()
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        assert sum(axes.has_data() for axes in figure.axes) == panels
        boxes = [
            child.get_window_extent(canvas.get_renderer())
            for axes in figure.axes
            for child in axes.get_children()
            if isinstance(child, Text) and child.get_text()
        ]
        assert len(boxes) == len(positions) + (positions is both), "a title for each table"
        for place, one in enumerate(boxes):
            assert one.x1 <= figure.bbox.x1
            assert not any(one.overlaps(other) for other in boxes[place + 1 :])
