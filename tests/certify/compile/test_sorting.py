"""Sorting networks are recognised by complete checks, and sorts in f by their lines."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.compile.algebra.normal_forms import Algebra
from everyformer.certify.compile.algebra.sorting import (
    Round,
    batcher,
    is_sorting_network,
    odd_even,
    sorted_leaves,
)
from everyformer.certify.compile.algebra.terms import Term
from everyformer.numerics.expression import Expression, Node


def sorts_all(n: int, rounds: list[Round]) -> bool:
    """By all 0-1 inputs."""
    for bits in product((0, 1), repeat=n):
        wires = list(bits)
        for pairs in rounds:
            for i, j in pairs:
                wires[i], wires[j] = sorted((wires[i], wires[j]))
        if wires != sorted(wires):
            return False
    return True


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 9])
def test_both_networks_sort_all_inputs_and_are_recognised(n: int) -> None:
    for rounds in (batcher(n), odd_even(n)):
        assert sorts_all(n, rounds)
        assert is_sorting_network(n, rounds)


def test_large_networks_are_recognised() -> None:
    for n in (33, 64, 100, 256):
        assert is_sorting_network(n, batcher(n))
        assert is_sorting_network(n, odd_even(n))
        assert not is_sorting_network(n, batcher(n)[1:])
        assert not is_sorting_network(n, odd_even(n)[:-2])
    assert len(batcher(64)) == 21


@pytest.mark.parametrize("n", [4, 6, 7])
def test_a_network_without_one_exchange_is_judged_truly(n: int) -> None:
    for rounds in (batcher(n), odd_even(n)):
        for k, pairs in enumerate(rounds):
            for pair in pairs:
                rest = [p for p in pairs if p != pair]
                broken = [*rounds[:k], *([rest] if rest else []), *rounds[k + 1 :]]
                if is_sorting_network(n, broken):
                    assert sorts_all(n, broken)
    assert not any(
        is_sorting_network(4, [*batcher(4)[:k], *batcher(4)[k + 1 :]]) for k in range(3)
    )


def test_malformed_rounds_are_refused() -> None:
    for pairs in ([(1, 0)], [(0, 3)], [(0, 1), (1, 2)], [(0, 0)], [(-1, 1)]):
        assert not is_sorting_network(3, [pairs, *odd_even(3)])
    assert not is_sorting_network(3, [])


def sort_of(n: int, d: int = 1) -> Expression:
    expression = ef.Target(lambda x: np.sort(x, -2), n, d).expression
    assert expression is not None
    return expression


def column(algebra: Algebra, n: int, i: int = 0) -> list[Term]:
    return [algebra.entry(j, i) for j in range(n)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_a_claimed_sort_has_the_terms_of_any_network(n: int) -> None:
    expression, algebra = sort_of(n, 2), Algebra()
    ends = [[row[i] for row in expression.outputs] for i in range(2)]
    rows = algebra.run_sorted(expression, ends)
    for i in range(2):
        expected = algebra.sorted_terms(column(algebra, n, i)[::-1])
        assert [row[i] for row in rows] == expected
        assert len(set(expected)) == n
    plain = expression.run(algebra, algebra.entry)
    wires = column(algebra, n)
    for pairs in odd_even(n):
        for k, m in pairs:
            a, b = wires[k], wires[m]
            wires[k], wires[m] = algebra.min(a, b), algebra.max(a, b)
    assert wires == [row[0] for row in plain]
    assert algebra.run_sorted(expression, []) == plain


def test_a_sort_with_a_leaf_repeated_has_other_terms() -> None:
    algebra = Algebra()
    wires = column(algebra, 4)
    one, other = algebra.sorted_terms(wires), algebra.sorted_terms([*wires[:3], wires[2]])
    assert all(a is not b for a, b in zip(one[1:], other[1:], strict=True))
    shifted = algebra.sorted_terms([algebra.add(w, algebra.entry(0, 1)) for w in wires])
    assert [algebra.sub(t, algebra.entry(0, 1)) for t in shifted] == one


def test_false_claims_are_not_confirmed() -> None:
    expression = sort_of(4)
    ends = [row[0] for row in expression.outputs]
    assert sorted_leaves(expression, ends) == (0, 1, 2, 3)
    for wrong in (
        ends[::-1],
        ends[:3],
        [*ends[:3], ends[2]],
        [*ends[:3], 0],
        [99, *ends[1:]],
    ):
        assert sorted_leaves(expression, wrong) is None
    for k, node in enumerate(expression.nodes):
        if node.op in {"min", "max"}:
            op = "max" if node.op == "min" else "min"
            nodes = (*expression.nodes[:k], Node(op, node.args), *expression.nodes[k + 1 :])
            assert sorted_leaves(Expression(4, 1, nodes, expression.outputs), ends) is None


@pytest.mark.parametrize("seed", range(20))
def test_sums_that_stay_open_have_the_same_terms(seed: int) -> None:
    """Random programs with shared sums, sums of a line with itself, and fractions."""
    rng = np.random.default_rng(seed)
    nodes = [Node("x", (j, i)) for j in range(2) for i in range(2)]
    nodes += [Node("const", value=Fraction(int(k), 6)) for k in rng.integers(-5, 6, 3)]
    ops = ["add", "sub", "add", "sub", "mul", "neg", "abs", "max", "exp"]
    for _ in range(40):
        op = str(rng.choice(ops))
        arity = 1 if op in {"neg", "abs", "exp"} else 2
        recent = rng.integers(max(0, len(nodes) - 12), len(nodes), arity)
        nodes.append(Node(op, tuple(int(k) for k in recent)))
    last = len(nodes) - 1
    f = Expression(2, 2, tuple(nodes), ((last, last - 1), (last - 3, last)))
    algebra = Algebra()
    assert algebra.run_sorted(f, []) == f.run(algebra, algebra.entry)
