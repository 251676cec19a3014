"""Nothing false is said of random modules, and a wrong rule is found out."""

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.adversarial.fact_oracles import check_facts, check_mirror
from tests.adversarial.programs import (
    PROPERTIES,
    Tally,
    cases,
    compare,
    exported,
    followed,
)
from tests.adversarial.random_modules import Program
from torch.export import ExportedProgram

from everyformer.checks.following import mirror, pointwise, products, shapes
from everyformer.checks.following.facts import Facts
from everyformer.checks.following.registry import RULES, Rule

CASES, SEED = 200, 7


@cache
def packs() -> list[tuple[list[Program], ExportedProgram]]:
    """The programs, exported once for all tests here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(programs, exported(programs, SEED)) for programs in cases(CASES, SEED)]


@pytest.mark.filterwarnings("ignore")
def test_nothing_false_is_said_of_random_programs() -> None:
    tally = Tally()
    for programs, program in packs():
        tally.add(compare(followed(program), programs, SEED))
    text = "\n".join(f"{wrong}\n{made}" for made, wrong in tally.violations)
    assert not tally.violations, f"seed {SEED}: {tally}\n{text}"
    assert tally.followed == CASES
    assert set(tally.proved) == set(PROPERTIES)
    assert min(tally.proved.values()) >= CASES // 10, str(tally)


def kept(x: Facts, *_: Any, shape: Any, **__: Any) -> Facts:
    """The facts of an operand, as if the operation did nothing."""
    return replace(x, shape=shape, value=None)


def slice_in_place(x: Facts, *args: Any, shape: Any) -> Facts:
    found = shapes.slice_(x, *args, shape=shape)
    return replace(found, rows=x.rows, means=x.means)


def select_any(x: Facts, dim: int, index: int, *, shape: Any) -> Facts:
    return replace(shapes.select(x, dim, index, shape=shape), moves=frozenset())


def permute_square(x: Facts, dims: Any, *, shape: Any) -> Facts:
    """Wrong where n = d: the shape does not tell whether tokens are rows."""
    return (
        kept(x, shape=shape) if shape == x.shape else shapes.permute(x, dims, shape=shape)
    )


def view_square(x: Facts, *args: Any, shape: Any, **__: Any) -> Facts:
    found = shapes.view(x, *args, shape=shape)
    whole = len(x.shape) == len(shape)
    return replace(found, moves=x.moves, uniform=x.uniform) if whole else found


def softmax_rows(x: Facts, dim: int, *_: Any, shape: Any, **__: Any) -> Facts:
    return replace(products.softmax(x, dim, shape=shape), sums_to_one=len(shape) - 1)


def softmax_open(x: Facts, dim: int, *_: Any, shape: Any, **__: Any) -> Facts:
    return replace(products.softmax(x, dim, shape=shape), sums_to_one=x.dim(dim))


def mean_of_first(x: Facts, *args: Any, shape: Any, **kwargs: Any) -> Facts:
    """Wrong: it hears more than the first slices of what is summed."""
    found = shapes.reduction(x, *args, shape=shape, **kwargs)
    if x.heard is None or len(shape) != len(x.shape):
        return found
    first = tuple(replace(one, by=one.by[: shape[one.dim]]) for one in x.heard)
    return replace(found, heard=first)


def attend_all(*args: Any, **kwargs: Any) -> Facts:
    return products.attention(*args[:5], **{**kwargs, "is_causal": False})


def cat_equal(parts: Any, dim: int = 0, *, shape: Any) -> Facts:
    found = shapes.cat(parts, dim, shape=shape)
    return replace(found, uniform=found.uniform | {dim % len(shape)})


def weights_of_any_sum(a: Facts, b: Facts, *, shape: Any) -> Facts:
    wanted = replace(a, sums_to_one=len(a.shape) - 1)
    return products.matmul(wanted, b, shape=shape)


WRONG: dict[str, tuple[tuple[str, ...], Rule]] = {
    "a slice keeps tokens in their places": (("slice",), slice_in_place),
    "a token picked out does not move": (("select",), select_any),
    "square matrices need no transposing": (("permute",), permute_square),
    "a reshape of equal rank changes nothing": (("view", "reshape"), view_square),
    "a softmax sums over the last dimension": (("softmax", "_softmax"), softmax_rows),
    "every row has a key": (("softmax", "_softmax"), softmax_open),
    "a mean hears its first token": (("mean", "sum", "amax", "amin"), mean_of_first),
    "attention is never causal": (("scaled_dot_product_attention",), attend_all),
    "parts of equal tokens are equal": (("cat",), cat_equal),
    "all weights sum to 1": (("matmul", "bmm", "mm"), weights_of_any_sum),
    "a sum up to here moves": (("cumsum",), kept),
    "a reversal moves": (("flip",), kept),
}


def is_found_out() -> bool:
    return any(check_facts(followed(program), SEED).violations for _, program in packs())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations, wrong = WRONG[name]
    for operation in operations:
        monkeypatch.setitem(RULES, operation, wrong)
    assert is_found_out()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", ["ZERO_AT_ZERO", "FINITE_ON_FINITE"])
def test_a_wrong_table_is_found_out(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = frozenset(["exp", "cos", "sigmoid", "reciprocal", "log", "div"])
    monkeypatch.setattr(pointwise, names, getattr(pointwise, names) | more)
    assert is_found_out()


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_mirror_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor its own mirror image."""

    def always(*_: object) -> bool:
        return True

    monkeypatch.setattr(mirror, "is_mirror_image", always)
    assert any(check_mirror(program, SEED).violations for _, program in packs())
