"""The rules of compiled networks under attack: sorts, silent tokens, words of a file.

Networks written by hand, with claims that a careless verifier would believe. Where a proof
goes through, its bounds hold for all runs that were tried; else it is refused.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.adversarial.hand_compiled import Hand, Head, Unit
from tests.certify.compile.drafts import Draft

import everyformer as ef
from everyformer.certify.compile.algebra.normal_forms import Algebra
from everyformer.certify.compile.algebra.sorting import (
    MOST_WIRES,
    Round,
    batcher,
    is_sorting_network,
    odd_even,
)
from everyformer.certify.compile.claims import Claimed
from everyformer.certify.work import Limits, check_program
from everyformer.construct.certificates import as_stored
from everyformer.errors import ExpressionError, WorkLimitError
from everyformer.model.compiled import ProgramStep
from everyformer.model.insides import Inside, table_of
from everyformer.numerics.expression import Expression, Node
from everyformer.targets.box import Box

CLOSED = 8.0
ONE_HOT = 1024.0


def ordered(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=-2)


@dataclass
class Exchanges:
    """Rounds of exchanges by hand: who reads whom, and which gates are open.

    Registers: x, partner, position, its square, isprefix; for each round tau and two gates.
    """

    n: int
    rounds: list[Round]
    partner_factors: dict[int, float] = field(default_factory=dict[int, float])
    prefix: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.taus = [np.arange(self.n) for _ in self.rounds]
        self.lows = [np.full(self.n, CLOSED) for _ in self.rounds]
        self.highs = [np.full(self.n, CLOSED) for _ in self.rounds]
        for k, pairs in enumerate(self.rounds):
            for i, j in pairs:
                self.taus[k][[i, j]] = j, i
                self.lows[k][i] = self.highs[k][j] = 0.0

    def hand(self) -> Hand:
        count = len(self.rounds)
        tau, low, high = (5 + count * k for k in range(3))
        start: dict[int, Any] = {2: np.arange(self.n), 3: np.arange(self.n) ** 2}
        prefix = None
        if self.prefix:
            prefix = np.zeros((len(self.prefix), 5 + 3 * count))
            prefix[:, 0], prefix[:, 4], prefix[:, low:] = self.prefix, 1.0, CLOSED
        for k in range(count):
            start |= {tau + k: self.taus[k], low + k: self.lows[k], high + k: self.highs[k]}
        found = Hand(ordered, self.n, 1, 5 + 3 * count, start, prefix, out=[{0: 1.0}])
        for k in range(count):
            head = Head(
                {"step": "gather", "tau": self.taus[k].tolist()},
                [({tau + k: 2 * ONE_HOT}, 0.0), ({}, -ONE_HOT), ({}, 1.0)],
                [{2: 1.0}, {3: 1.0}, {4: -(2.0**40)}],
                [{0: 1.0}],
                [(1, self.partner_factors.get(k, 1.0))],
            )
            units = [
                Unit({0: 1.0, 1: -1.0, low + k: -1.0}, 0.0, 0, -1.0),
                Unit({1: 1.0, 0: -1.0, high + k: -1.0}, 0.0, 0, 1.0),
                Unit({1: 1.0}, 0.0, 1, -1.0),
                Unit({1: -1.0}, 0.0, 1, 1.0),
            ]
            gates = [low + k, high + k]
            exchange = {"step": "exchange", "register": 0, "units": [0, 1], "gates": gates}
            clear = {"step": "clear", "register": 1, "units": [2, 3]}
            found.block([head], units, [exchange, clear])
        f = ef.Target(ordered, self.n, 1).expression
        assert f is not None
        lines = [row[0] for row in f.outputs]
        found.sorting = [{"register": 0, "blocks": [0, count - 1], "lines": lines}]
        for k in self.partner_factors:
            found.coefficients[f"{k}.W_O"] = [[0, 1, 0, "1"]]
        return found


def test_a_sort_by_hand_is_proved() -> None:
    hand = Exchanges(5, batcher(5), prefix=(3.0, -1e6)).hand()
    assert not hand.refused()
    assert hand.is_honest()


@pytest.mark.parametrize("late", [0, 2])
def test_partners_that_are_off_are_counted_once_for_each_round(late: int) -> None:
    """A gather says 1.01 of what it reads, and claims to stand for 1 of it."""
    hand = Exchanges(4, batcher(4), partner_factors={0: 1.01, late: 0.99}).hand()
    (real, run), found = hand.bounds(), hand.measured()
    assert 0.01 <= found.real <= real <= 0.021
    assert found.run <= run


def test_gates_that_are_half_open_or_open_at_one_end_only() -> None:
    """Only a token that reads itself may have any gate open: it keeps what it has."""
    for round_, token, value in itertools.product(range(3), range(4), (0.0, 0.5, -1.0)):
        exchanges = Exchanges(4, batcher(4))
        alone = exchanges.taus[round_][token] == token
        gate = exchanges.lows[round_]
        if gate[token] != value:
            gate[token] = value
            assert bool(exchanges.hand().refused()) == (value != 0.0 or not alone)


@pytest.mark.parametrize(("round_", "token", "third"), [(0, 0, 1), (1, 3, 0), (2, 1, 3)])
def test_wires_that_read_a_third_one(round_: int, token: int, third: int) -> None:
    """A token reads another one than its partner, in weights and claims."""
    exchanges = Exchanges(4, batcher(4))
    exchanges.taus[round_][token] = third
    assert "not sorted by comparators" in exchanges.hand().refused()


def test_claims_that_end_too_early_or_overlap() -> None:
    hand = Exchanges(4, [*batcher(4), *batcher(4)]).hand()
    (claim,) = hand.sorting
    assert "do not sort" in hand.refused()  # twice in a row is no merge of either kind
    first, second = {**claim, "blocks": [0, 2]}, {**claim, "blocks": [3, 5]}
    hand.sorting = [first, second]
    assert "is not f" in hand.refused()  # sorted twice is a sort of order statistics
    hand.sorting = [first, {**claim, "blocks": [2, 5]}]
    assert "sorted twice" in hand.refused()
    hand.sorting = [{**claim, "blocks": [1, 3]}]
    assert "do not sort" in hand.refused()


def sorts_everything(n: int, rounds: Sequence[Round]) -> bool:
    """All 0-1 inputs at once."""
    wires = np.array(list(itertools.product((0, 1), repeat=n))).T.copy()
    for pairs in rounds:
        for i, j in pairs:
            wires[[i, j]] = np.minimum(wires[i], wires[j]), np.maximum(wires[i], wires[j])
    return bool((wires[1:] >= wires[:-1]).all())


def changed(rounds: list[Round], n: int, rng: np.random.Generator) -> list[Round]:
    """A round or a pair less, a round twice or elsewhere, a random round of one stride."""
    found = [list(pairs) for pairs in rounds]
    k, at = (int(i) for i in rng.integers(0, len(found), 2))
    match int(rng.integers(0, 5)):
        case 0:
            del found[k]
        case 1:
            found[k].pop()
        case 2:
            found.insert(at, list(found[k]))
        case 3:
            found[k], found[at] = found[at], found[k]
        case _:
            stride = 1 << int(rng.integers(0, 3))
            free, pairs = set(range(n)), Round()
            for i in rng.permutation(n - stride).tolist():
                j = i + stride * int(rng.choice([1, 3]))
                if {i, j} <= free and j < n:
                    free -= {i, j}
                    pairs.append((i, j))
            found.insert(at, pairs)
    return [pairs for pairs in found if pairs]


def test_rounds_that_are_said_to_sort_do_so() -> None:
    rng = np.random.default_rng(11)
    said = [0, 0]
    for _ in range(1500):
        n = int(rng.integers(3, 9))
        rounds = changed((odd_even, batcher)[int(rng.integers(0, 2))](n), n, rng)
        if rounds and rng.random() < 0.5:
            rounds = changed(rounds, n, rng)
        found = is_sorting_network(n, rounds)
        assert not found or sorts_everything(n, rounds)
        said[found] += 1
    assert min(said) > 100


@pytest.mark.parametrize(
    "rounds",
    [
        [], [[]], [[(0, 0)]], [[(1, 0)]], [[(0, 4)]], [[(-1, 0)]], [[(0, 1), (1, 2)]],
        [*batcher(4)[:1], *batcher(4)], batcher(4)[::-1], batcher(8), batcher(3),
        [[(0, 2), (1, 3)], [(0, 1), (2, 3)], []],
    ],
)  # fmt: skip
def test_round_lists_that_are_no_network_of_four_wires(rounds: list[Round]) -> None:
    assert not is_sorting_network(4, rounds) or sorts_everything(4, rounds)


def test_the_memory_that_checking_a_sort_takes_is_counted() -> None:
    """1,024 wires: 0.27 GB of 0-1 inputs, and as much again three times."""
    weights = as_stored(Exchanges(4, batcher(4)).hand().network())
    f = ef.Target(ordered, 4, 1).expression
    assert f is not None
    limits = Limits(memory=5e8)
    moves = (1,) * 3
    check_program(weights, f, Claimed(0, 1, moves), limits)
    wide = replace(weights, seq_len=MOST_WIRES)
    check_program(wide, f, Claimed(0, 0, moves), limits)
    with pytest.raises(WorkLimitError, match="max_memory"):
        check_program(wide, f, Claimed(0, 1, moves), limits)
    beyond = replace(weights, seq_len=MOST_WIRES + 1)  # refused before it is tried
    check_program(beyond, f, Claimed(0, 1, moves), limits)


def masked(mask: np.ndarray, slope: float) -> Any:
    def attention(x: np.ndarray) -> np.ndarray:
        weights = np.exp(slope * (x @ np.swapaxes(x, -1, -2))) * mask
        return weights / weights.sum(axis=-1, keepdims=True) @ x

    return attention


def hearing(
    mask: np.ndarray, slope: float, gap: float, prefix_gap: float, offset: float = 0.0
) -> Hand:
    """Attention where constant scores -gap stand for 0 in the mask.

    Registers: x, result, hot_j, a mask for each query j, isprefix, an offset of all scores.
    """
    n = len(mask)
    start: dict[int, Any] = {3 + 2 * n: offset}
    for j in range(n):
        start |= {2 + j: np.eye(n)[j], 2 + n + j: np.where(mask[j] > 0, 0.0, -gap)}
    prefix = np.zeros((1, 4 + 2 * n))
    prefix[0, [0, 2 + 2 * n]] = 100.0, 1.0
    found = Hand(masked(mask, slope), n, 1, 4 + 2 * n, start, prefix, out=[{1: 1.0}])
    queries = [({0: slope}, 0.0), *(({2 + j: 1.0}, 0.0) for j in range(n)), ({}, 1.0)]
    keys = [{0: 1.0}, *({2 + n + j: 1.0} for j in range(n)), {2 + 2 * n: -prefix_gap}]
    queries.append(({}, 1.0))
    keys.append({3 + 2 * n: 1.0})
    found.block([Head({"step": "attend"}, queries, keys, [{0: 1.0}], [(1, 1.0)])])
    return found


MASK = np.array([[1.0, 0.0], [1.0, 1.0]])


@pytest.mark.parametrize("slope", [1.0, 300.0])
@pytest.mark.parametrize("beyond", [-700.0, -50.0, -1.0])
def test_scores_between_the_loudest_and_the_silent_are_heard(
    slope: float, beyond: float
) -> None:
    """The mask is 2 |score| + 800 + beyond: at some x what it silences may be loud."""
    hand = hearing(MASK, slope, 2 * slope + 800 + beyond, 2.0**40)
    assert "is not f" in hand.refused()


@pytest.mark.parametrize(
    ("gap", "prefix_gap", "offset"),
    [(8192.0, 2.0**40, 0.0), (2.0**60, 2.0**70, 0.0), (8192.0, 2.0**60, 2.0**30)],
)
def test_silent_tokens_and_offsets_of_all_scores(
    gap: float, prefix_gap: float, offset: float
) -> None:
    """Scores near 2^30 lose 2^-23; those of a mask lose more, and nobody hears them."""
    hand = hearing(MASK, 300.0, gap, prefix_gap, offset)
    assert not hand.refused()
    assert hand.is_honest()
    assert (hand.bounds()[1] > 1e-8) == (offset > 0)


@pytest.mark.parametrize(("prefix_gap", "offset"), [(8192.0, 0.0), (2.0**30, 2.0**30)])
def test_prefix_tokens_that_are_not_below_all_others(
    prefix_gap: float, offset: float
) -> None:
    """The one says 100; the offset does not belong to it."""
    hand = hearing(MASK, 300.0, 8192.0, prefix_gap, -offset)
    assert "prefix tokens are heard" in hand.refused()


TINY = 2.0**-40


@pytest.fixture(scope="module")
def clip() -> Draft:
    return Draft.of(ef.Target(lambda x: np.clip(x, 0.25, 0.75), 1, 1))


def nested(x: np.ndarray, low: float, high: float, at: float = 0.75) -> np.ndarray:
    return np.where(x < 0.25, low, np.where(x > at, high, x))


def by_two(x: np.ndarray, low: float, high: float, at: float = 0.75) -> np.ndarray:
    return np.where((x > 0.25) & (x < at), x, np.where(x >= 0.5, high, low))


@pytest.mark.parametrize("written", [nested, by_two])
def test_choices_with_a_jump_are_not_the_clip(clip: Draft, written: Any) -> None:
    """A jump of 2^-40, of whichever branch and of the border, is no clip."""

    def traced(*numbers: float) -> Expression:
        found = ef.Target(lambda x: written(x, *numbers), 1, 1).expression
        assert found is not None
        return found

    assert not clip.refused(traced(0.25, 0.75))
    for low, high, at in (
        (0.25 + TINY, 0.75, 0.75), (0.25 - TINY, 0.75, 0.75), (0.25, 0.75 + TINY, 0.75),
        (0.25, 0.75, 0.75 + TINY), (0.25, 0.75, 0.75 - TINY), (0.75, 0.25, 0.75),
    ):  # fmt: skip
        assert "is not f" in clip.refused(traced(low, high, at))


def bent(x: np.ndarray, at: float, gap: float, power: int = 2) -> np.ndarray:
    """A parabola and a wave that meet at `at`, where `gap` is 0."""
    return np.where(x > at, (x - 0.5) ** power + gap, np.sin(x - 0.5))


def test_curved_pieces_with_a_jump_are_not_the_pieces_that_meet() -> None:
    """A jump of 2^-40, a border off by it, branches exchanged, another power."""
    draft = Draft.of(ef.Target(lambda x: bent(x, 0.5, 0.0), 1, 1))

    def why(function: Callable[[np.ndarray], np.ndarray]) -> str:
        found = ef.Target(function, 1, 1).expression
        assert found is not None
        return draft.refused(found)

    assert not why(lambda x: bent(x, 0.5, 0.0))
    assert not why(lambda x: np.where(x <= 0.5, np.sin(x - 0.5), (0.5 - x) ** 2))
    assert "is not f" in why(lambda x: np.where(x > 0.5, np.sin(x - 0.5), (x - 0.5) ** 2))
    for at, gap, power in (
        (0.5, TINY, 2),
        (0.5, -TINY, 2),
        (0.5 + TINY, 0, 2),
        (0.5, 0, 4),
    ):
        assert "is not f" in why(partial(bent, at=at, gap=gap, power=power))


def test_pieces_are_not_joined_where_they_may_not_be_defined() -> None:
    """(x - y) log(x) log(3 - 2 y) at x = y is 0 in (0, 3/2), and nothing beyond."""
    near, far = Box((1.0, -1.0), (2.0, 1.0)), Box((1.0, 0.5), (1.25, 1.0))
    for box, joined in ((near, False), (far, True)):
        f = Algebra(box=box)
        x, y = f.entry(0, 0), f.entry(0, 1)
        gap = f.sub(x, y)
        beside = f.log(f.affine([(Fraction(-2), y)], Fraction(3)))
        both = f.mul(gap, f.mul(f.log(x), beside))
        found = f.where(gap, both, f.add(both, both))
        names = {f.atom_parts(k)[0] for m in found.numerators for k, _ in f.parts(m)[0]}
        assert ("where" not in names) == joined


def shares(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """1, as a sum of shares divided last, wherever their sum is not 0."""
    weights = np.exp(x - np.swapaxes(x, -1, -2)) * mask
    return (weights @ np.ones((3, 1))) / weights.sum(axis=-1, keepdims=True)


def test_shares_of_what_may_be_zero_do_not_add_up() -> None:
    """With the mask 1, 1, -1 the sum of weights is 0 somewhere in the box."""
    draft = Draft.of(ef.Target(lambda x: shares(x, np.ones((3, 3))), 3, 1))
    assert not draft.refused()
    for row in ([1.0, 1.0, -1.0], [0.0, 1.0, -1.0]):
        mask = np.ones((3, 3))
        mask[1] = row
        target = ef.Target(lambda x, mask=mask: shares(x, mask), 3, 1, lipschitz=1)
        f = target.expression
        assert f is not None
        assert "may not be defined" in draft.refused(f)


def test_a_long_word_is_not_as_many_as_there_are_rows() -> None:
    """Each row of a table is as wide as its widest: 0.7 MB of a file were 400 MB."""
    steps = [ProgramStep(1, ((0, 1.0),), "w", "l")] * 1000
    steps[3] = replace(steps[3], what="w" * 10**5, line="l" * 10**5)
    table = table_of([Inside(one, np.zeros(2), np.zeros(2)) for one in steps])
    assert len(table) < 10**6
    assert "www…" in table
    assert "lll…" in table


def test_lines_that_are_refused_are_not_repeated_at_length() -> None:
    """A file of megabytes is not an error of megabytes."""
    for wrong in (Node("w" * 10**6, (0,)), Node("neg", (0,) * 10**6)):
        with pytest.raises(ExpressionError, match=r"Line 1") as error:
            Expression(1, 1, (Node("x", (0, 0)), wrong), ((0,),))
        assert len(str(error.value)) < 400
    with pytest.raises(ExpressionError, match="outputs") as error:
        Expression(1, 1, (Node("x", (0, 0)),), ((0,) * 10**6,))
    assert len(str(error.value)) < 400
