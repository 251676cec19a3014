"""A proof told at one input: every sum in it is right, for every construction."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import everyformer as ef
from everyformer.model.network import Network
from everyformer.narration.chapter import SHOWN_LINES, cut
from everyformer.narration.numbers import agree, tokens, vector
from everyformer.narration.proof import Narration, narrate
from everyformer.targets.gallery import centring, reverse, sort

X = np.array([[0.1], [0.9]])
NUMBER = r"-?[0-9][0-9.e+-]*(?:/[0-9]+)?"
SUMS: dict[str, Callable[[list[float]], float]] = {
    rf"({NUMBER}) \+ ({NUMBER}) \(({NUMBER}) - \(?({NUMBER})\)?\) = ({NUMBER})": (
        lambda v: v[0] + v[1] * (v[2] - v[3])
    ),
    rf": ({NUMBER}) \+ ({NUMBER}) \(({NUMBER})\) = ({NUMBER})": (
        lambda v: v[0] + v[1] * v[2]
    ),
    rf"[:=] ({NUMBER}) \+ ({NUMBER}) = ({NUMBER})": lambda v: v[0] + v[1],
    rf"\(({NUMBER}) - \(?({NUMBER})\)?\) / ({NUMBER}) = ({NUMBER})": (
        lambda v: (v[0] - v[1]) / v[2]
    ),
    rf"[AS] = ({NUMBER}) \(({NUMBER})\^({NUMBER})\) = ({NUMBER})": (
        lambda v: v[0] * v[1] ** v[2]
    ),
}
BOX = ef.Target(
    lambda x: x - x.mean(-2, keepdims=True), 2, 1, domain=[(-1, 3)], equivariant=True
)


def bump(x: np.ndarray) -> np.ndarray:
    height = np.maximum(x * (1 - x), 0)
    return height * height[..., ::-1, :]


BUMP = ef.Target(bump, 2, 1, equivariant=True, everywhere=True)
PLANE = ef.Target(lambda x: x[..., ::-1, :], 2, 2, domain=[(0, 1), (-1, 1)])

MADE: dict[str, Callable[[], ef.Built]] = {
    "theorem 2": lambda: ef.construct(centring(2), grid=4),
    "theorem 2 on a box": lambda: ef.construct(BOX, grid=4),
    "theorem 3": lambda: ef.construct(reverse(2), grid=4),
    "theorem 3 in the plane": lambda: ef.construct(PLANE, grid=2),
    "rationals": lambda: ef.construct(
        reverse(2), grid=3, method=ef.SelectiveShifts(softened=False)
    ),
    "one token": lambda: ef.construct(sort(1), grid=4),
    "urpe": lambda: ef.construct(reverse(2), grid=4, method="urpe"),
    "sparse": lambda: ef.construct(
        reverse(3), grid=2, method=ef.SparseShifts(ef.patterns.ring(3))
    ),
    "averaging": lambda: ef.construct(reverse(2), grid=4, method="averaging"),
    "averaging, two steps": lambda: ef.construct(
        reverse(2), grid=4, method=ef.Averaging(variant="two-step")
    ),
    "averaging, narrow": lambda: ef.construct(
        centring(2), grid=4, method=ef.Averaging(variant="narrow")
    ),
    "averaging, 0 outside": lambda: ef.construct(
        BUMP, grid=4, method=ef.Averaging(positional=True)
    ),
    "partition": lambda: ef.construct(centring(2), grid=4, method="partition"),
    "compile": lambda: ef.construct(centring(2), tol=1e-3, method="compile"),
}


@cache
def made(name: str) -> ef.Built:
    return MADE[name]()


def story(network: Network, x: np.ndarray, f: ef.Target | None = None) -> Narration:
    return narrate(network, x, network.trace(x), f)


def spread(built: ef.Built) -> np.ndarray:
    n, d = built.target.seq_len, built.target.d_model
    lows, highs = (
        np.array(ends) for ends in (built.target.domain.lows, built.target.domain.highs)
    )
    return lows + (highs - lows) * (np.arange(n)[:, None] + [0.3, 0.6][:d]) / n


@pytest.mark.parametrize("name", MADE)
def test_every_sum_is_right_and_the_ends_are_f_and_g(name: str) -> None:
    built = made(name)
    x = spread(built)
    told = story(built.network, x, built.target)
    assert told.rows[0] == ("input x", tuple(tokens(x)))
    assert agree(told.g, built.network(x))
    assert told.f is not None
    assert agree(told.f, built.target(x))
    text = "\n".join(line for chapter in told.chapters for line in chapter.lines)
    claims = " ".join(chapter.claim for chapter in told.chapters)
    assert "does not hold" not in claims
    assert "not one of its name" not in claims
    assert ", but " not in text
    checked = 0
    for pattern, formula in SUMS.items():
        for found in re.findall(pattern, text):
            *given, result = (float(Fraction(one)) for one in found)
            assert formula(given) == pytest.approx(result, rel=2e-5, abs=2e-5)
            checked += 1
    expected = {"compile": 0, "partition": 0, "theorem 3 in the plane": 3, "one token": 1}
    assert checked >= expected.get(name, 4)
    if name not in ("partition", "compile"):
        assert "that is what the network gives for all of the cell" in text
    last = told.rows[-1][1]
    assert [re.sub(".*= ", "", one) for one in last] == tokens(told.g)


def test_anchors_are_told_with_their_weights() -> None:
    built = made("partition")
    lines = story(built.network, X).chapters[-1].lines
    shown = [line for line in lines if line.startswith("anchor")]
    weights = [float(re.findall("weight ([0-9.]+)", line)[0]) for line in lines[:5]]
    assert len(shown) == 4
    assert sum(weights) == pytest.approx(1, abs=1e-3)
    assert shown[0].startswith("anchor (0, 1): weight 0.2312, value (-0.5, 0.5)")


def test_a_token_on_a_ramp_is_not_told_as_quantised() -> None:
    told = story(made("theorem 2").network, np.array([[0.25 - 1e-10], [0.9]]), centring(2))
    text = "\n".join(line for chapter in told.chapters for line in chapter.lines)
    assert "which is not on the grid: it lies on a ramp between two cells" in text
    assert "its id is within delta/2 of l = 0.25" in text
    assert "names the whole sequence" not in text
    assert "what the network gives for all of the cell" not in text
    low = story(made("averaging").network, np.array([[0.25 - 2e-6], [0.9]]))
    assert any(", but it has " in line for line in low.chapters[1].lines)


def test_two_tokens_in_a_cell_and_one_outside() -> None:
    network = made("theorem 2").network
    equal = story(network, np.array([[0.3], [0.31]]), centring(2))
    text = "\n".join(line for chapter in equal.chapters for line in chapter.lines)
    assert "Nothing moves: all ids are equal" in text
    assert "two tokens share a cell, and Theorem 2 gives such sequences up" in text
    outside = story(network, np.array([[0.3], [2.0]]))
    text = "\n".join(line for chapter in outside.chapters for line in chapter.lines)
    assert "lies outside the grid and stays" in text
    assert "its id is below 0, so the smallest one counts: " in text
    assert (outside.g == 0).all()
    for positional in (True, False):
        method = ef.Averaging(positional=positional)
        network = ef.construct(BUMP, grid=4, method=method).network
        told = story(network, np.array([[0.3], [-0.5]]), BUMP)
        assert told.chapters[-1].title == "sum and look-up"  # no cell, no centre
        lines = [line for chapter in told.chapters for line in chapter.lines]
        assert any("token 2: outside the box, A = " in line for line in lines)
        assert not any("phi(0) = 1" in line for line in lines)
        assert (told.g == 0).all()


def test_a_memory_is_told_by_its_registers() -> None:
    held = ef.memorise(X[None], 2 * X[None])
    told = story(held.network, X)
    assert told.rows[-1] == ("output g(x)", ("0.2", "1.8"))
    assert all(chapter.lines for chapter in told.chapters[1:])


def test_a_stage_that_lies_about_its_kind_is_told_by_what_it_does() -> None:
    """Kinds and names are words of a file; sums are of the weights."""
    network = made("theorem 2").network
    for kind in ("selective shifts", "position layer", "read in", "quantise", "lift"):
        stages = [replace(stage, kind=kind, name="\x1b[2J") for stage in network.stages]
        told = story(replace(network, stages=tuple(stages)), X)
        assert len(told.chapters) == len(stages)
        assert "\x1b" not in "\n".join(told.chapters[0].text(1))
        assert agree(told.g, network(X))
    shifts = next(k for k, s in enumerate(network.stages) if s.kind == "selective shifts")
    broken = list(network.stages)
    stack = broken[shifts].attention
    assert stack is not None
    W_O = stack.W_O.copy()
    W_O[:, 1] *= -3
    broken[shifts] = replace(broken[shifts], attention=replace(stack, W_O=W_O))
    told = story(replace(network, stages=tuple(broken)), X)
    assert "layer 1, token 2: the id 0.75 becomes 12.75" in told.chapters[shifts].lines
    assert not any("names the whole sequence" in one for one in told.chapters[shifts].lines)


def test_long_things_are_cut() -> None:
    assert tokens(np.zeros((7, 1))) == ["0"] * 6 + ["..."]
    assert vector(np.zeros(7)) == "(0, 0, 0, 0, 0, 0, ...)"
    many = cut(("line",) * (SHOWN_LINES + 3))
    assert len(many) == SHOWN_LINES + 1
    assert many[-1] == "... and 3 more"
    assert not agree(np.zeros(2), np.zeros(3))
