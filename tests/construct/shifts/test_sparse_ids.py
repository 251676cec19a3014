"""Ids through sparse attention, on every sequence of a grid, in exact integers.

The names (A1) to (B4) are those of docs/constructions/sparse.md. Every test of a case is
exhaustive: all sequences of its grid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pytest
from tests.plans import constants_of

import everyformer as ef
from everyformer import patterns
from everyformer.construct.shifts.sparse import (
    chain,
    chain_shifts,
    chained_ids,
    max_shifts,
    padding,
    raised_ids,
    sparse_ids,
    sparse_shifts,
)
from everyformer.construct.shifts.sparse_constants import (
    SparseConstants,
    SparseVariant,
    stated_coefficient,
)
from everyformer.construct.shifts.sparse_plan import path_and_hops
from everyformer.errors import PatternError
from everyformer.model.stacks import AttentionStack
from everyformer.numerics.kinds import EXACT
from everyformer.patterns import Pattern, assumption_1
from everyformer.targets.box import Box, Grid
from everyformer.verdict import Verdict


@dataclass(frozen=True)
class Case:
    name: str
    pattern: Pattern
    d: int
    K: int
    variant: SparseVariant = "wide"

    @property
    def constants(self) -> SparseConstants:
        gamma, s = path_and_hops(self.pattern, None)
        return constants(self.pattern, self.d, self.K, gamma, s, self.variant)

    @property
    def sequences(self) -> int:
        return self.K ** (self.d * self.pattern.n)

    def __str__(self) -> str:
        return f"{self.name}({self.pattern.n},{self.d},{self.K})"


def constants(
    pattern: Pattern,
    d: int,
    K: int,
    gamma: Sequence[int] | None = None,
    s: int = 1,
    variant: SparseVariant = "wide",
) -> SparseConstants:
    """Positions 1 apart and C = 2 s n K^(nd+1), as the proof has them."""
    n = pattern.n
    return SparseConstants(
        grid=Grid(K, n, Box((0.0,) * d, (1.0,) * d)),
        theorem="Theorem 1",
        softened=False,
        spacing=K,
        pattern=pattern,
        gamma=tuple(range(n)) if gamma is None else tuple(gamma),
        s=s,
        variant=variant,
    )


def named(name: str, n: int, w: int = 0) -> Pattern:
    rows = {6: 2, 9: 3, 4: 2, 12: 3}
    makers = {
        "dense": lambda: patterns.dense(n),
        "ring": lambda: patterns.ring(n),
        "window": lambda: patterns.window(n, 1),
        "window+global": lambda: patterns.window_global(n, 1, [0]),
        "star": lambda: patterns.star(n),
        "bigbird": lambda: patterns.big_bird(n, 3, 1, 1, seed=0),
        "log-sparse": lambda: patterns.log_sparse(n),
        "strided": lambda: patterns.strided(n, w),
        "fixed": lambda: patterns.fixed(n, w),
        "strided union": lambda: patterns.strided(n, w).union(),
        "axial": lambda: patterns.axial(rows[n], n // rows[n]),
        "relabelled ring": lambda: patterns.relabelled(patterns.ring(n), (2, 0, 3, 1)),
        "relabelled window": lambda: patterns.relabelled(
            patterns.window(n, 1), (1, 3, 0, 2)
        ),
    }
    return makers[name]()


def fast_cases() -> Iterator[Case]:
    """107 cases."""
    sizes = [
        *[(2, 1, 2), (2, 1, 3), (2, 1, 8), (2, 2, 2), (2, 2, 3), (2, 3, 2), (3, 1, 2)],
        *[(3, 1, 3), (3, 1, 5), (3, 2, 2), (4, 1, 2), (4, 1, 3)],
    ]
    for name, (n, d, K) in product(["dense", "ring", "window", "window+global"], sizes):
        yield Case(name, named(name, n), d, K)
    sizes = [(4, 1, 2), (4, 1, 3), (4, 2, 2), (5, 1, 2), (5, 1, 3), (6, 1, 2), (6, 1, 3)]
    for name, (n, d, K) in product(["star", "bigbird", "log-sparse", "ring"], sizes):
        yield Case(name, named(name, n), d, K)
    wide = [
        *[(4, 2, 1, 2), (4, 2, 1, 3), (4, 2, 2, 2), (6, 2, 1, 2), (6, 3, 1, 3)],
        *[(8, 4, 1, 2), (9, 3, 1, 2)],
    ]
    for name, (n, w, d, K) in product(["strided", "fixed", "strided union"], wide):
        yield Case(f"{name} w={w}", named(name, n, w), d, K)
    for n, d, K in [(6, 1, 2), (6, 1, 3), (9, 1, 2), (4, 2, 2)]:
        yield Case("axial", named("axial", n), d, K)
    yield Case("relabelled ring", named("relabelled ring", 4), 1, 3)
    yield Case("relabelled window", named("relabelled window", 4), 1, 4)
    for name, n, w, d, K in [
        *[("dense", 3, 0, 1, 3), ("ring", 4, 0, 1, 3), ("strided", 4, 2, 1, 2)],
        ("star", 4, 0, 2, 2),
    ]:
        yield Case(f"{name} sweep", named(name, n, w), d, K, "sweep")


def large_cases() -> Iterator[Case]:
    """39 more."""
    sizes = [
        *[(3, 3, 2), (3, 3, 3), (4, 2, 3), (4, 3, 2), (5, 2, 2), (6, 2, 2), (8, 1, 3)],
        *[(10, 1, 2), (12, 1, 2), (3, 1, 16), (2, 4, 3), (4, 1, 8)],
    ]
    for name, (n, d, K) in product(["star", "ring", "window+global"], sizes):
        yield Case(name, named(name, n), d, K)
    for name in ("strided", "fixed", "axial"):
        yield Case(name, named(name, 12, 4), 1, 2)


def random_cases() -> Iterator[Case]:
    """Random families that happen to satisfy Assumption 1, of one part and of two."""
    for seed in range(40):
        one = patterns.random(5, 2, seed)
        two = patterns.cycle(patterns.random(5, 1, seed), patterns.random(5, 1, seed + 99))
        for pattern, K in ((one, 3), (two, 2)):
            if assumption_1(pattern).verdict is Verdict.PROVED:
                yield Case(f"random p={pattern.p} seed {seed}", pattern, 1, K)


FAST, LARGE, RANDOM = list(fast_cases()), list(large_cases()), list(random_cases())


def test_the_cases_are_those_of_the_specification() -> None:
    assert len(FAST) == 107
    assert sum(case.sequences for case in FAST) == 15_940
    assert len(FAST) + len(LARGE) == 146
    assert sum(case.sequences for case in [*FAST, *LARGE]) == 215_446
    assert len(RANDOM) >= 29
    assert {case.pattern.p for case in RANDOM} == {1, 2}


@pytest.mark.rows(60)
@pytest.mark.parametrize("case", [*FAST, *LARGE, *RANDOM], ids=str)
def test_every_sequence(case: Case) -> None:
    check(case.constants)


@pytest.mark.parametrize("case", FAST, ids=str)
def test_every_sequence_as_float64_has_it(case: Case) -> None:
    """Positions 1 + delta apart, and the least C."""
    c = replace(case.constants, softened=True, spacing=case.K + 1)
    assert stated_coefficient(c.n, c.d, c.K, c.s) > c.C
    check(c)


def check(c: SparseConstants) -> None:
    columns = c.grid.all_sequences()
    chained = check_chain(c, columns)
    check_maxima(c, chained)
    check_counts(c)


def check_chain(c: SparseConstants, columns: np.ndarray) -> np.ndarray:
    """(A1) to (A4); returns the ids after Stage A."""
    n, a, K, gamma = c.n, c.V, c.K, list(c.gamma)
    ids = [one[:, gamma] for one in chained_ids(c, columns)]  # along the path
    windows = a if c.variant == "sweep" else 1
    start = ids[0]
    D = (a - 1) // (K - 1)
    places = c.spacing * D * np.array([n - 1, *range(n - 1)])
    assert (start == columns[:, gamma] + places).all()
    expected = start.copy()
    for i in range(1, n):  # (A1)
        expected[:, i] = start[:, i] + a * (expected[:, i - 1] - start[:, i])
        after = ids[i * windows]
        assert (after == expected).all()
        order = after[:, [*range(i + 1, n), *range(i + 1)]]
        assert (order[:, 1:] > order[:, :-1]).all()
    powers = np.array([a ** (n - i) for i in range(2, n + 1)], dtype=object)
    closed = a ** (n - 1) * start[:, 0] - (a - 1) * (start[:, 1:] @ powers)
    last = ids[-1][:, -1]
    assert (last == closed).all()  # (A2)
    assert len(set(last.tolist())) == len(columns)  # (A3)
    assert (int(last.min()), int(last.max())) == (c.L_min, c.L_max)  # (A4)
    assert K <= (n - 1) * D * K <= c.L_min
    assert c.L_max < n * K ** (n * c.d) * c.spacing
    *_, chained = chained_ids(c, columns)
    return chained


def check_maxima(c: SparseConstants, chained: np.ndarray) -> None:
    """(B1) to (B4)."""
    C, largest = c.C, chained[:, c.gamma[-1]]
    assert c.softened or stated_coefficient(c.n, c.d, c.K, c.s) == C
    assert (chained < C).all()  # C delta is above every id before Stage B
    heard, ids = np.eye(c.n, dtype=bool), chained
    for t, after in enumerate(raised_ids(c, chained), start=1):
        rows = c.pattern.parts[(t - 1) % c.pattern.p].mask()
        heard = (rows.astype(int) @ heard.astype(int)) > 0  # S_k^t
        for k in range(c.n):
            assert (C**t * chained[:, heard[k]].max(axis=1) <= after[:, k]).all()  # (B1)
        assert (after <= ((1 + C) ** t * largest)[:, None]).all()
        assert (after % C == chained).all()  # (B3), so that no maximum is shared
        ids = after
    assert heard.all()
    assert (ids >= (C**c.s * largest)[:, None]).all()
    assert (ids < (C**c.s * (largest + 1))[:, None]).all()  # (B2)
    assert len(set(ids.reshape(-1).tolist())) == ids.size  # (B4)
    assert c.t_l <= int(ids.min())
    assert int(ids.max()) <= c.t_r
    assert c.t_r.bit_length() == c.id_bits


def check_counts(c: SparseConstants) -> None:
    stacks = attention(c)
    windows = c.V if c.variant == "sweep" else 1
    chained, raised = stacks[-2:]
    assert chained.layers == c.pattern.p * (c.n - 1) * windows
    assert int((chained.W_O != 0).any(axis=(1, 2, 3)).sum()) == (c.n - 1) * windows
    assert raised.layers == c.s
    before = c.d * c.n * c.K + sum(stack.layers for stack in stacks[:-1])
    assert before % c.pattern.p == 0  # Stage B begins with pattern 1


def attention(c: SparseConstants) -> list[AttentionStack]:
    stacks = [step.stage.attention for step in sparse_shifts(c, EXACT)]
    return [stack for stack in stacks if stack is not None]


LITERAL = [
    *[("ring", 3, 0, 1, 5), ("star", 4, 0, 2, 2), ("window", 4, 0, 1, 4)],
    *[("strided", 4, 2, 2, 2), ("axial", 6, 0, 1, 2), ("fixed", 6, 3, 1, 2)],
    *[("window+global", 3, 0, 2, 2), ("dense", 2, 0, 2, 3), ("bigbird", 6, 0, 1, 3)],
    ("relabelled window", 4, 0, 1, 3),
]


def test_the_literal_network_equals_the_recursion() -> None:
    """Explicit heads, hardmax, unique maxima with margin delta^2/2: 1,906 sequences."""
    count = 0
    for name, n, w, d, K in LITERAL:
        c = Case(name, named(name, n, w), d, K).constants
        columns = c.grid.all_sequences()
        steps = np.array(c.steps) * c.spacing
        state = (c.grid.digits(columns) + steps[:, None]).astype(object)
        rest = state[..., 1:].copy()
        for stack in attention(c):
            for layer in range(stack.layers):
                state = literal(c, stack, layer, state)
        u = np.array(c.u, dtype=object)
        assert (state @ u == sparse_ids(c, columns)).all()
        assert (state[..., 1:] == rest).all()
        count += len(columns)
    assert count >= 1_800


def literal(
    c: SparseConstants, stack: AttentionStack, layer: int, state: np.ndarray
) -> np.ndarray:
    """One layer on states in units of delta; scores in units of delta^2/2."""
    assert stack.mask is not None
    mask, update = stack.mask[layer], np.zeros_like(state)
    # Scores are products of two ids: int64 where they fit, many times faster.
    dtype = np.int64 if int(state.max()) * sum(c.u) < 2**30 else object
    for head in range(2):
        half = int(2 * c.K * stack.b_Q[layer, head, 0])
        query = (2 * (state @ stack.W_Q[layer, head, 0]) - half).astype(dtype)
        key = (state @ stack.W_K[layer, head, 0]).astype(dtype)
        value = state @ stack.W_V[layer, head, 0]
        scores = query[:, :, None] * key[:, None, :]
        scores = np.where(mask, scores, scores.min() - 1)
        second, first = np.moveaxis(np.sort(scores, axis=-1)[..., -2:], -1, 0)
        alone = mask.sum(axis=-1) == 1
        assert ((first - second >= 1) | alone).all()
        chosen = np.take_along_axis(value, np.argmax(scores, axis=-1), axis=-1)
        update = update + chosen[..., None] * stack.W_O[layer, head, :, 0]
    return state + update


def from_masks(*rows: list[list[int]]) -> Pattern:
    """A pattern from 1-based sets A_k."""
    masks = [
        np.array([[j + 1 in A for j in range(len(sets))] for A in sets]) for sets in rows
    ]
    return patterns.from_masks(masks)


BACK = [[4, 3], [1, 4], [2, 1], [3, 2]]
"""{k-1, k-2} mod 4, without self-loops."""

OTHERS = [[2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 2, 3]]
RING = constants(patterns.ring(4), 1, 3, s=3)
CONTROLS = {
    "ring with C = 1": (replace(RING, max_factor=1), 84),
    "ring with 2 maxima instead of 3": (replace(RING, s=2, max_factor=RING.C), 54),
    "dense with factor 1": (
        replace(constants(patterns.dense(3), 1, 3), chain_factor=1),
        78,
    ),
    "bare star": (constants(patterns.bare_star(5), 1, 2, s=2), 128),
    "no self-loops": (constants(from_masks(BACK), 1, 3, s=3), 11),
    "causal": (constants(patterns.causal(4), 1, 3, s=3), 204),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_negative_controls_collide(name: str) -> None:
    """n a^n minus the number of different ids, and a pair of tokens that share one."""
    c, count = CONTROLS[name]
    columns = c.grid.all_sequences()
    ids = sparse_ids(c, columns)
    assert ids.size - len(set(ids.reshape(-1).tolist())) == count
    report = ef.contextual_mapping(lambda _: ids, c.grid.digits(columns))
    assert report.verdict is Verdict.REFUTED
    found = report.within or report.across
    assert found is not None
    (row, token), (other, place) = found.first, found.second
    assert ids[row, token] == ids[other, place]
    assert f"share the id {found.id}" in str(report)


def test_what_is_not_necessary_is_no_control() -> None:
    """Without self-loops ids may still be distinct, and the theorem is silent."""
    c = constants(from_masks(OTHERS), 1, 3, s=2)
    ids = sparse_ids(c, c.grid.all_sequences())
    assert len(set(ids.reshape(-1).tolist())) == ids.size
    with pytest.raises(PatternError, match=r"A1\.1"):
        path_and_hops(c.pattern, None)


@pytest.mark.parametrize(
    ("pattern", "clause"),
    [
        (from_masks(BACK), r"A1\.1 self-loops"),
        (patterns.bare_star(5), r"A1\.2 hamiltonian-path"),
        (patterns.causal(4), r"A1\.3 receptive-fields .*never hears"),
        (patterns.fixed(5, 2), r"A1\.3"),
        (patterns.block_local(4, 2), r"A1\.3"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_builder_names_the_clause_that_fails(pattern: Pattern, clause: str) -> None:
    target = ef.targets.reverse(pattern.n, 1)
    with pytest.raises(PatternError, match=clause):
        ef.construct(target, grid=2, method=ef.SparseShifts(pattern))


def test_a_path_of_ones_own() -> None:
    found = ef.plan(
        ef.targets.reverse(4, 1),
        2,
        method=ef.SparseShifts(patterns.dense(4), gamma=(2, 0, 3, 1)),
    )
    assert constants_of(found).steps == (0, 2, 3, 1)
    with pytest.raises(PatternError, match="breaks at step 1"):
        ef.plan(
            ef.targets.reverse(4, 1),
            2,
            method=ef.SparseShifts(patterns.ring(4), gamma=(0, 2, 1, 3)),
        )


def test_padding_brings_stage_b_to_pattern_1() -> None:
    """Three patterns, and six blocks of quantiser on two tokens of width 1 and K = 4."""
    three = patterns.cycle(*[patterns.dense(2)] * 3)
    c = constants(three, 1, 4)
    assert (c.blocks_before, c.padding) == (8, 1)
    stack = padding(c, EXACT).stage.attention
    assert stack is not None
    assert not stack.W_O.any()
    assert next(step.stage.name for step in sparse_shifts(c, EXACT)) == "padding"
    assert c.padding + c.blocks_before == 9


def test_the_edge_of_the_path_chooses_the_pattern() -> None:
    """Of an axial pattern: along a row by A^1, from row to row by A^2."""
    c = Case("axial", patterns.axial(2, 2), 1, 2).constants
    mask = [part.mask() for part in c.pattern.parts]
    used = [shift.part for shift in chain(c)]
    assert sorted(used) == [0, 0, 1]
    for part, (before, token) in zip(used, pairwise(c.gamma), strict=True):
        assert mask[part][token, before]
    for step in (chain_shifts(c, EXACT), max_shifts(c, EXACT)):
        stack = step.stage.attention
        assert stack is not None
        assert stack.mask is not None
        assert all((stack.mask[k] == mask[k % 2]).all() for k in range(stack.layers))
