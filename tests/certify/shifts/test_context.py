"""Attention on ids: exact hardmax, and softmax in balls of thousands of bits."""

import importlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.shifts.context import Ids, Mode, run_attention, to_real
from everyformer.certify.shifts.reading import read_network
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, read_weights, to_fractions
from everyformer.model.architecture import Normaliser
from everyformer.model.forward import attention_layer
from everyformer.model.stacks import AttentionStack
from everyformer.targets.box import Grid

flint: Any = importlib.import_module("flint")

PRECISION = 3000
"""Bits of the balls: exp(-1024) has its first one at 2^-1478."""


def arb(value: Fraction) -> Any:
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def stack_of(stage: StageWeights, *, exact: bool) -> AttentionStack:
    arrays: dict[str, Any] = {
        name: to_fractions(array) if exact else array
        for name, array in stage.arrays.items()
    }
    return AttentionStack(**arrays)


def literal(stages: list[StageWeights], x: np.ndarray, normaliser: Normaliser) -> Any:
    """The layers one by one, on Fractions or on float64 numbers."""
    for stage in stages:
        stack = stack_of(stage, exact=x.dtype == object)
        for layer in range(stack.layers):
            x = attention_layer(stack, layer, x, normaliser)
    return x


def in_balls(stages: list[StageWeights], tokens: np.ndarray) -> list[list[Any]]:
    """Softmax attention on (n, d) Fractions, in balls."""
    z = [[arb(value) for value in token] for token in tokens]
    for stage in stages:
        stack = stack_of(stage, exact=True)
        for layer in range(stack.layers):
            update = [[flint.arb(0) for _ in token] for token in z]
            for h in range(stack.W_Q.shape[1]):
                rows = [
                    [arb(v) for v in np.ravel(W[layer, h])]
                    for W in (stack.W_Q, stack.W_K, stack.W_V, stack.W_O)
                ]
                bias = arb(stack.b_Q[layer, h, 0])
                query, key, value = (
                    [
                        sum((a * b for a, b in zip(row, token, strict=True)), flint.arb(0))
                        for token in z
                    ]
                    for row in rows[:3]
                )
                for j, q in enumerate(query):
                    scores = [(q - bias) * k for k in key]
                    highest = max(float(s.mid()) for s in scores)
                    powers = [(s - highest).exp() for s in scores]
                    whole = sum(powers, flint.arb(0))
                    mean = sum(
                        (a * v for a, v in zip(powers, value, strict=True)), flint.arb(0)
                    )
                    for i, weight in enumerate(rows[3]):
                        update[j][i] += weight * mean / whole
            z = [
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in zip(z, update, strict=True)
            ]
    return z


def distances(z: list[list[Any]], ids: Ids, index: int) -> Iterator[tuple[Any, Any]]:
    """|softmax - ids| as a ball, and the bound on it, for every entry."""
    bound = to_real(ids.error)[index]
    for (j, i), number in np.ndenumerate(ids.numbers[index]):
        off = abs(z[j][i] - arb(Fraction(int(number), ids.unit)))
        yield off, arb(Fraction(bound[j, i]))


def values(ids: Ids) -> np.ndarray:
    """The exact states, as Fractions."""
    return ids.numbers.astype(object) * Fraction(1, ids.unit)


@dataclass(frozen=True)
class Case:
    """The attention stages of a constructed network, and its representatives."""

    stages: list[StageWeights]
    start: Ids
    softmax: bool

    def run(self, mode: Mode = "real", divisor: float = 1.0) -> Ids:
        ids = replace(self.start, mode=mode)
        for stage in self.softer(divisor):
            ids = run_attention(stage, ids, self.softmax)
        return ids

    def softer(self, divisor: float) -> list[StageWeights]:
        """The same with a smaller lambda."""
        return [
            replace(s, arrays={**s.arrays, "W_K": s.arrays["W_K"] / divisor})
            for s in self.stages
        ]


Size = tuple[int, int, int, bool]
SIZES: list[Size] = [  # n, d, K, positional
    (2, 1, 4, False),
    (2, 2, 2, False),
    (3, 1, 4, False),
    (4, 1, 4, False),
    (2, 1, 4, True),
    (2, 2, 2, True),
    (3, 1, 2, True),
]


@cache
def case(size: Size, softened: bool = True, grid: int | None = None) -> Case:
    n, d, K, positional = size
    K = grid or K
    target = ef.targets.centring(n, d)
    network = ef.construct(
        target, grid=K, method=ef.SelectiveShifts(positional=positional, softened=softened)
    ).network
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder) / "n")
        weights = read_weights(Path(folder) / "n")
    reading = read_network(weights, target.domain, K)
    cells = Grid(K, n, target.domain)
    rows = cells.all_sequences()
    if not positional:
        rows = np.concatenate([cells.distinct_sets(), cells.repeated_multisets()])
    state = reading.plateaus.values  # [n, d, K]
    unit = K
    exact = state[np.arange(n)[:, None], np.arange(d), cells.digits(rows)] * unit
    numbers = np.array([int(v) for v in exact.flat]).reshape(exact.shape)
    assert (numbers == exact).all()
    first = np.ones(rows.shape, dtype=bool)
    if not positional:
        first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    stages = [s for s in weights.stages if s.half == "attention"]
    start = Ids(numbers, unit, first, np.zeros(numbers.shape), "real")
    return Case(stages, start, softened)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("softened", [True, False])
def test_ids_are_those_of_hardmax(size: Size, softened: bool) -> None:
    """All representatives, with copies of tokens and without."""
    found = case(size, softened)
    ids = found.run()
    expected = literal(found.stages, values(found.start), "hardmax")
    assert (values(ids) == expected).all()
    assert (ids.error > 0).any() == softened


def test_ids_of_a_grid_that_is_not_dyadic() -> None:
    found = case((2, 2, 3, False), softened=False)
    expected = literal(found.stages, values(found.start), "hardmax")
    assert (values(found.run()) == expected).all()


def test_ids_beyond_int64() -> None:
    """Python ints take over where int64 ends; the ids are the same."""
    found = case((4, 1, 4, False), softened=False)
    far = replace(found.start, numbers=found.start.numbers.astype(object) * 3**40)
    stages = [
        replace(s, arrays={**s.arrays, "b_Q": s.arrays["b_Q"] * 3**40})
        for s in found.stages
    ]
    ids = far
    for stage in stages:
        ids = run_attention(stage, ids, softmax=False)
    assert max(abs(int(v)) for v in ids.numbers.flat) > 2**63
    assert (ids.numbers == found.run().numbers.astype(object) * 3**40).all()


NOTHING = Fraction(1, 2**2000)
"""Room for the radius of a ball, where no error at all is allowed."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("divisor", [1.0, 50.0, 100.0])
def test_softmax_is_within_the_bound(size: Size, divisor: float) -> None:
    """Random representatives; smaller lambdas make leaks that can be seen."""
    found = case(size)
    ids, stages = found.run("real", divisor), found.softer(divisor)
    chosen = Random(0).sample(range(len(ids.numbers)), 5)
    with flint.ctx.workprec(PRECISION):
        pairs = [
            pair
            for index in chosen
            for pair in distances(in_balls(stages, values(found.start)[index]), ids, index)
        ]
        assert all(off <= bound + arb(NOTHING) for off, bound in pairs)
        if divisor > 1:  # the control: a tenth of the bound is exceeded
            assert any(10 * off > bound for off, bound in pairs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["real", "float64"])
def test_a_lambda_too_small_is_named(size: Size, mode: Mode) -> None:
    divisor = 1000.0 if size != (2, 2, 2, True) else 4000.0
    with pytest.raises(Undecided, match="too close for the errors so far") as caught:
        case(size).run(mode, divisor)
    assert caught.value.stage == "selective shifts"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("divisor", [1.0, 20.0, 28.0, 36.0, 50.0, 100.0])
def test_a_float64_run_is_within_the_bound(size: Size, divisor: float) -> None:
    found = case(size)
    ids = found.run("float64", divisor)
    start = found.start.numbers / found.start.unit
    state = literal(found.softer(divisor), start, "softmax")
    off = np.abs(to_fractions(state) - values(ids))
    assert (off <= to_fractions(to_real(ids.error))).all()
    if divisor == 1 and size[0] == 2:
        assert not ids.error.any()  # nothing is rounded at all


def stage(
    W_Q: Any, b_Q: Any, W_K: Any, W_V: Any, W_O: Any, name: str = "by hand"
) -> StageWeights:
    """One layer; rows of shape (h, d), biases of shape (h,)."""
    rows = [np.array(row, dtype=np.float64)[None, :, None, :] for row in (W_Q, W_K, W_V)]
    arrays = {
        "W_Q": rows[0],
        "b_Q": np.array(b_Q, dtype=np.float64)[None, :, None],
        "W_K": rows[1],
        "W_V": rows[2],
        "W_O": np.array(W_O, dtype=np.float64)[None, :, :, None],
    }
    return StageWeights(name, "attention", arrays)


def tokens(
    rows: list[list[int]], mode: Mode = "real", copies: bool = False, unit: int = 1
) -> Ids:
    numbers = np.array([rows])
    first = np.ones(numbers.shape[:2], dtype=bool)
    if copies:
        first[:, 1:] = (numbers[:, 1:] != numbers[:, :-1]).any(axis=-1)
    return Ids(numbers, unit, first, np.zeros(numbers.shape), mode)


def test_by_hand() -> None:
    """Two tokens attend to the larger key, one to the smaller."""
    layer = stage([[1, 0]], [-0.5], [[0, 9]], [[2, 1]], [[0, 3]])
    ids = run_attention(layer, tokens([[4, 1], [1, 2], [-2, 7]]), softmax=False)
    assert ids.numbers.tolist() == [[[4, 1 + 9], [1, 2 + 9], [-2, 7 + 27]]]
    assert not ids.error.any()


def test_ties() -> None:
    """Different tokens with one key: fine if they have one value, else undecided."""
    same_key, same_value = [[3, 1], [3, 1], [0, 9]], [[3, 1], [3, 5], [0, 9]]
    layer = stage([[0, 0]], [-1.0], [[1, 0]], [[1, 0]], [[0, 1]])
    for rows in (same_key, same_value):
        for softmax in (False, True):
            ids = run_attention(layer, tokens(rows), softmax)
            assert ids.numbers[0, :, 1].tolist() == [row[1] + 3 for row in rows]
    other = stage([[0, 0]], [-1.0], [[1, 0]], [[0, 1]], [[0, 1]])
    with pytest.raises(Undecided, match="different tokens have the same score") as caught:
        run_attention(other, tokens(same_value), softmax=True)
    assert caught.value.stage == "by hand"


def test_a_query_of_zero_is_undecided() -> None:
    layer = stage([[1, 0]], [3.0], [[1, 0]], [[1, 0]], [[0, 1]])
    for softmax in (False, True):
        with pytest.raises(Undecided, match="a query is 0"):
            run_attention(layer, tokens([[3, 1], [2, 0]]), softmax)
    alone = run_attention(layer, tokens([[3, 1], [3, 1]], copies=True), softmax=True)
    assert alone.numbers.tolist() == [[[3, 4], [3, 4]]]
    assert not alone.error.any()


def test_single_tokens_attend_to_themselves() -> None:
    layer = stage([[1]], [5.0], [[-1]], [[2]], [[3]])
    modes: tuple[Mode, ...] = ("real", "float64")
    for mode in modes:
        ids = run_attention(layer, tokens([[5]], mode), softmax=True)
        assert ids.numbers.tolist() == [[[35]]]
        assert not ids.error.any()


def test_forms_that_are_not_followed() -> None:
    layer = stage([[1]], [0.5], [[1]], [[1]], [[1]])
    wide = {name: np.repeat(array, 2, axis=2) for name, array in layer.arrays.items()}
    wide["W_O"] = np.repeat(layer.arrays["W_O"], 2, axis=3)
    with pytest.raises(Undecided, match="size above 1"):
        run_attention(replace(layer, arrays=wide), tokens([[1], [2]]), softmax=True)
    for W_V, W_O in (([[0.5]], [[1]]), ([[1]], [[0.5]])):
        with pytest.raises(Undecided, match="not integers"):
            run_attention(
                stage([[1]], [0.5], [[1]], W_V, W_O), tokens([[1], [2]]), softmax=True
            )
    silent = stage([[1]], [1.0], [[0.5]], [[0.5]], [[0]])
    ids = run_attention(silent, tokens([[1], [2]]), softmax=True)
    assert ids.numbers.tolist() == [[[1], [2]]]


def test_integers_beyond_float64_are_undecided() -> None:
    layer = stage([[1]], [0.5], [[1]], [[1]], [[1]])
    far = tokens([[2**52], [2**51]], "float64")
    with pytest.raises(Undecided, match="float64 cannot hold integers"):
        run_attention(layer, far, softmax=True)
    near = tokens([[2**50], [2**49]], "float64")
    assert run_attention(layer, near, softmax=True).numbers[0, 0, 0] == 2**51


def random_layers(rng: Random) -> tuple[list[StageWeights], list[list[int]], int]:
    """Heads with and without a shared W_V, ties, copies; states of any size."""
    n, d, h = rng.randint(1, 4), rng.randint(1, 2), rng.randint(1, 3)
    size = 10 ** rng.randint(1, 6)
    rows = [[rng.randint(-size, size) for _ in range(d)] for _ in range(n)]
    if rng.random() < 0.5:
        rows = sorted(rng.choices(rows, k=n))

    def heads(most: int, *, alike: bool = False) -> list[list[int]]:
        found = [[rng.randint(-most, most) for _ in range(d)] for _ in range(h)]
        return found[:1] * h if alike else found

    stages: list[StageWeights] = []
    for _ in range(rng.randint(1, 3)):
        scale = 2.0 ** rng.uniform(-6, 6)
        W_K = [[scale * v for v in row] for row in heads(3, alike=rng.random() < 0.5)]
        biases = [rng.randint(-5, 5) + 0.25 for _ in range(h)]
        W_V = heads(3, alike=rng.random() < 0.5)
        stages.append(stage(heads(3), biases, W_K, W_V, heads(3)))
    return stages, rows, 2 ** rng.randint(0, 2)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32))
def test_random_layers(seed: int) -> None:
    """Hardmax, softmax in balls, and a float64 run, of whatever is not undecided."""
    stages, rows, unit = random_layers(Random(seed))
    modes: tuple[Mode, ...] = ("real", "float64")
    for mode in modes:
        start = tokens(rows, mode, copies=True, unit=unit)
        ids = start
        try:
            for layer in stages:
                ids = run_attention(layer, ids, softmax=True)
        except Undecided:
            continue
        assert (values(ids) == literal(stages, values(start), "hardmax")).all()
        if mode == "real":
            with flint.ctx.workprec(2200):
                z = in_balls(stages, values(start)[0])
                pairs = list(distances(z, ids, 0))
                assert not any(off > bound for off, bound in pairs)
        else:
            state = literal(stages, start.numbers / unit, "softmax")
            off = np.abs(to_fractions(state) - values(ids))
            assert (off <= to_fractions(to_real(ids.error))).all()


def two_layers(rng: Random) -> tuple[list[StageWeights], list[list[int]]]:
    """A layer with visible leaks, then one that reads what it wrote, in several ways."""
    n = rng.randint(2, 3)
    rows = [[rng.randint(0, 2), rng.randint(0, 3)] for _ in range(n)]

    def heads(count: int) -> tuple[list[list[int]], list[list[int]]]:
        values = [[rng.randint(-1, 2) for _ in range(2)] for _ in range(count)]
        writes = [[rng.randint(-1, 1), rng.randint(-2, 2)] for _ in range(count)]
        return values, writes

    first = stage(
        [[1, 0]], [rng.choice([-1.0, 0.5, 1.5])], [[rng.uniform(8, 20), 0]], *heads(1)
    )
    count = rng.randint(1, 2)
    sharp = rng.choice([rng.uniform(4, 20), 3000.0])
    rows_k = [
        [sharp * rng.choice([0, 1]), sharp * rng.choice([0, 1, -1])] for _ in range(count)
    ]
    rows_q = [[rng.choice([1, -1]), rng.choice([0, 1])] for _ in range(count)]
    biases = [rng.randint(-3, 3) + 0.5 for _ in range(count)]
    return [first, stage(rows_q, biases, rows_k, *heads(count))], rows


def test_errors_are_carried_on() -> None:
    """Errors of the first layer move queries, keys, values and ties of the second."""
    decided = visible = 0
    for seed in range(400):
        stages, rows = two_layers(Random(seed))
        start = tokens(rows, copies=True)
        try:
            ids = run_attention(stages[0], start, softmax=True)
            ids = run_attention(stages[1], ids, softmax=True)
        except Undecided:
            continue
        decided += 1
        with flint.ctx.workprec(2200):
            pairs = list(distances(in_balls(stages, values(start)[0]), ids, 0))
            assert not any(off > bound for off, bound in pairs), seed
            visible += any(3 * off > bound for off, bound in pairs)
    assert decided > 100
    assert visible > decided / 4


@pytest.mark.parametrize("what", ["query", "key"])
def test_an_error_narrows_the_gap(what: str) -> None:
    """The first layer writes 1 - 0.047, or 0 + 0.047, where it should write 1, or 0.

    The second one reads that, as its query or as its keys, and the gap of its scores
    shrinks from 20 to 16, or from 40 to 36; what it writes has no other error.
    """
    rows = [[1, 0], [0, 0]]
    if what == "query":
        first = stage([[0, 0]], [-1.0], [[3, 0]], [[1, 0]], [[0, 1]])
        second = stage([[0, 1]], [0.75], [[80, 0]], [[1, 0]], [[1, 0]])
    else:
        first = stage([[2, 0]], [1.0], [[3, 0]], [[1, 0]], [[0, 1]])
        second = stage([[0, 0]], [-1.0], [[0, 40]], [[1, 0]], [[1, 0]])
    start = tokens(rows)
    ids = run_attention(second, run_attention(first, start, softmax=True), softmax=True)
    assert ids.numbers[0, :, 0].tolist() == [2, 1]
    with flint.ctx.workprec(PRECISION):
        z = in_balls([first, second], values(start)[0])
        pairs = list(distances(z, ids, 0))
        assert all(off <= bound for off, bound in pairs)
        naive = arb(Fraction(3, 10**9) if what == "query" else Fraction(1, 10**17))
        assert pairs[0][0] > naive  # what exact scores would leave


def float64_distance(layer: StageWeights, start: Ids) -> tuple[np.ndarray, np.ndarray]:
    """|float64 run - ids|, and the bound; both 0 where it is undecided."""
    try:
        ids = run_attention(layer, start, softmax=True)
    except Undecided:
        return np.zeros(1), np.zeros(1)
    state = literal([layer], start.numbers / start.unit, "softmax")
    return np.abs(state - ids.numbers / ids.unit), to_real(ids.error)


@pytest.mark.parametrize("gap", [28.0, 30.0, 34.0, 40.0])
def test_values_that_are_close_and_large(gap: float) -> None:
    """A leak is small because values are close, but the weights 1 - exp(-gap) round."""
    layer = stage([[0, 0]], [-1.0], [[gap, 0]], [[1, 0]], [[0, 1]])
    for k in range(60):
        large = 1_000_000 + 7919 * k
        off, bound = float64_distance(
            layer, tokens([[large, 0], [large + 1, 0]], "float64")
        )
        assert (off <= bound).all(), large


def test_values_that_agree_under_different_weights() -> None:
    """All values are 18; their mean with rounded weights is not."""
    layer = stage([[-1, 2]], [-2.75], [[0, -0.0283]], [[-3, -1]], [[0, 1]])
    for scale in np.linspace(0.5, 4, 60):
        scaled = {**layer.arrays, "W_K": layer.arrays["W_K"] * scale}
        start = tokens([[-3, -9], [-5, -3], [-6, 0]], "float64")
        off, bound = float64_distance(replace(layer, arrays=scaled), start)
        assert (off <= bound).all(), scale


@pytest.mark.parametrize("gap", [30.0, 40.0, 45.0, 50.0])
def test_a_query_whose_products_round(gap: float) -> None:
    """W_Q z takes 83 bits; W_Q divides everything, which is no help in float64."""
    W, far = 1.5 * 2**30 - 1, 2**52
    layer = stage([[W, 0, 0]], [W * far], [[0, -gap / W / 3, 0]], [[0, 1, 0]], [[0, 0, 1]])
    assert Fraction(W * far) == Fraction(W) * far
    off, bound = float64_distance(
        layer, tokens([[far - 1, 0, 0], [far - 1, 3, 0]], "float64")
    )
    assert (off <= bound).all()


@pytest.mark.parametrize("copies", [2, 3, 4, 5, 6, 7, 8])
def test_copies_share_in_float64(copies: int) -> None:
    """Shares 1/c, rounded, of large and of small values."""
    layer = stage([[0, 0]], [-1.0], [[1, 0]], [[1, 0]], [[0, 1]])
    rng = Random(copies)
    for bits in (3, 20, 40, 50, 52):
        for _ in range(12):
            row = [rng.randrange(2 ** (bits - 1), 2**bits), 0]
            start = tokens([row] * copies, "float64", copies=True)
            off, bound = float64_distance(layer, start)
            assert (off <= bound).all(), row


@pytest.mark.parametrize("factor", [3, 5, 7])
def test_a_first_error_beside_a_large_number(factor: int) -> None:
    """The layer that makes the first error also rounds its sum with a large state."""
    gap = 6 * math.log(2) * (1 + 1e-6)
    layer = stage([[0, 0]], [-1.0], [[gap, 0]], [[1, 0]], [[0, factor]])
    off, bound = float64_distance(layer, tokens([[0, 2**48], [1, 2**48]], "float64"))
    assert (off <= bound).all()
