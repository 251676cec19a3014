"""Claims refuted on boxes: domains, regions, sizes and work that make a box mean less."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify import refute as refuting
from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.refute import Apart, boxes_apart, refute
from everyformer.certify.verify import verify
from everyformer.certify.weights import StageWeights, Weights, read_weights
from everyformer.files.names import NETWORK_FILE
from everyformer.model.stacks import FeedForwardStack, Stage
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box, Grid
from everyformer.targets.region import Region
from everyformer.verdict import Verdict

MUCH = Fraction(10) ** 1000
"""More than any power of a distance: all boxes are looked at."""


def plus(bias: float, n: int) -> Weights:
    """x + bias, one number a token."""
    none, units = np.zeros((1, 1, 1)), np.zeros((1, 1))
    own = {"W_1": none, "b_1": units, "W_2": none, "b_2": units + bias}
    return Weights(n, 1, True, None, (StageWeights("f", "feed_forward", own),), False, "")


def traced(
    f: Callable[[np.ndarray], np.ndarray], n: int, domain: tuple[float, float] = (0.0, 1.0)
) -> Expression:
    target = ef.Target(f, seq_len=n, d_model=1, domain=[domain])
    assert target.expression is not None
    return target.expression


def cells_of(K: int, n: int, domain: tuple[float, float] = (0.0, 1.0)) -> Cells:
    return Cells.of(Grid(K, n, Box.per_coordinate([domain], 1)), symmetric=False)


@pytest.mark.parametrize("ends", [(1.0, 1 + 2.0**-52), (0.0, 1e-323), (-5e-324, 5e-324)])
@pytest.mark.parametrize("K", [2, 16])
@pytest.mark.parametrize("declared", [False, True])
def test_cells_without_float64_numbers_inside(
    ends: tuple[float, float], K: int, declared: bool
) -> None:
    """Rounded inward such a cell is turned round, and two widths below 0 have a volume."""
    cells = cells_of(K, 2, ends)
    f = traced(lambda x: x + 1, 2, ends)
    known = f
    if declared:
        values = np.full((cells.count, 2, 1), 2.0)
        known = Declared(values, Fraction(0), Fraction(0), Fraction(1, 2**1070))
    apart = boxes_apart(plus(0.0, 2), cells, known, Fraction(2), MUCH)
    most = 2 * 2**2 * cells.volume  # |f - g| <= 2, two entries
    assert apart is None or apart.lower <= most


@pytest.mark.parametrize("p", [Fraction(1), Fraction(2), Fraction(64), None])
def test_gaps_beyond_float64(p: Fraction | None) -> None:
    """A difference, or a power of it, that overflows is still a distance from below."""
    f = traced(lambda x: x * 0 + 1e308, 1)
    apart = boxes_apart(plus(-1.5e308, 1), cells_of(4, 1), f, p, MUCH)
    assert apart is not None
    assert 2**800 < apart.lower <= (26 * 10**307) ** (p or 1)


def test_a_piece_of_a_region_is_not_its_cell(tmp_path: Path) -> None:
    """f = g on the region; the middle of the cell, where they differ, is outside it."""
    f = ef.Target(
        lambda x: x + 2000 * np.maximum(x - 0.005, 0),
        seq_len=1,
        d_model=1,
        domain=[(0.0, 1.0)],
    )
    built = ef.construct(f, grid=4, method="selective-shift")
    one, units = np.zeros((1, 1, 1)), np.zeros((1, 1))
    identity = Stage("identity", "test", None, FeedForwardStack(one, units, one, units))
    replace(built.network, stages=(identity,)).save(tmp_path / NETWORK_FILE)
    weights = read_weights(tmp_path / NETWORK_FILE)
    for p in (None, Fraction(2)):
        claim = replace(
            built.certificate,
            weights_sha256=weights.sha256,
            blocks=1,
            p=p,
            eps=Fraction(1, 10),
            claims=("real",),
            region=Region.of([[[(0, 0.005)]]], 1, 1),
            bound=None,
            float64_bound=None,
        )
        claim.save(tmp_path)
        found = refute(tmp_path, verify(tmp_path))
        assert found.verdict is Verdict.UNKNOWN
        assert " over a region of 1 box" in claim.claim("f")


def looked_at(apart: Apart | None) -> int:
    return 0 if apart is None else apart.looked_at


def test_lines_of_f_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small network, a long f and many cells: each box takes all lines of f."""
    monkeypatch.setattr(refuting, "MOST_WORK", 2**18)

    def long(x: np.ndarray) -> np.ndarray:
        y = x
        for k in range(50):
            y = np.sin(y) + x / (k + 1)
        return y + 9

    f = traced(long, 1)
    apart = boxes_apart(plus(0.0, 1), cells_of(128, 1), f, Fraction(2), MUCH)
    assert 0 < looked_at(apart) * len(f.nodes) <= 2**12


def test_heads_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every head has shares of its own, for all pairs of tokens."""
    monkeypatch.setattr(refuting, "MOST_WORK", 2**19)
    n, heads = 8, 64
    own: dict[str, np.ndarray] = {
        key: np.zeros((1, heads, 1, 1)) for key in ("W_Q", "W_K", "W_V", "W_O")
    }
    own["b_Q"] = np.zeros((1, heads, 1))
    stage = StageWeights("a", "attention", own)
    weights = Weights(n, 1, True, None, (stage,), False, "")
    f = traced(lambda x: x + 1, n)
    apart = boxes_apart(weights, cells_of(2, n), f, Fraction(2), MUCH)
    assert 0 < looked_at(apart) * n * n * heads * (1 + n) <= 2**20
