"""Sorts in log depth under attack: networks that do not sort, and claims that say so."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.certify.compile.drafts import Draft, own

import everyformer as ef
from everyformer.certify.compile.claims import Claimed
from everyformer.certify.work import Limits, check_program
from everyformer.construct.certificates import as_stored
from everyformer.errors import InputError, WorkLimitError
from everyformer.numerics.expression import Expression

Function = Callable[[np.ndarray], np.ndarray]
LOG_DEPTH = ef.Compile(variant="log-depth")


def ordered(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=-2)


def drafted(function: Function = ordered, n: int = 8, d: int = 1) -> Draft:
    target = ef.Target(function, n, d)
    built = ef.construct(target, tol=1e-6, method=LOG_DEPTH)
    assert target.expression is not None
    return Draft(target, built.network, own(as_stored(built.network)), target.expression)


@pytest.fixture(scope="module")
def kept() -> dict[int, Draft]:
    return {d: drafted(d=d) for d in (1, 2)}


@pytest.fixture
def draft(kept: dict[int, Draft], request: pytest.FixtureRequest) -> Draft:
    """The sort of 8 tokens, in arrays of its own."""
    found = kept[getattr(request, "param", 1)]
    return replace(found, weights=copy.deepcopy(found.weights))


def traced(function: Function, n: int = 8, d: int = 1) -> Expression:
    found = ef.Target(function, n, d).expression
    assert found is not None
    return found


def ends(f: Expression, channel: int = 0) -> list[int]:
    return [row[channel] for row in f.outputs]


def exchanges(draft: Draft) -> list[tuple[int, dict[str, Any]]]:
    """All claimed exchanges, with their blocks."""
    return [
        (number, claim)
        for number, block in enumerate(draft.claims["blocks"])
        for claim in block["units"]
        if claim["step"] == "exchange"
    ]


def test_the_honest_network_is_proved(draft: Draft) -> None:
    assert not draft.refused()
    assert draft.measured() <= draft.bound() <= 1e-13
    assert len(draft.claims["blocks"]) == 6
    draft.claims["sorting"] = []
    assert "is not f" in draft.refused()


def test_sixty_four_tokens_are_sorted_in_21_blocks() -> None:
    draft = drafted(n=64)
    assert not draft.refused()
    assert len(draft.claims["blocks"]) == 21


@pytest.mark.parametrize("place", range(6))
def test_a_comparator_that_is_turned_around(draft: Draft, place: int) -> None:
    """Both units of one exchange read the other's gate: the larger goes first."""
    number, claim = exchanges(draft)[place]
    W_1 = draft.array(number, "W_1")
    low, up = claim["gates"]
    (a, b) = claim["units"]
    W_1[a, [low, up]], W_1[b, [low, up]] = W_1[a, [up, low]], W_1[b, [up, low]]
    assert draft.refused()
    claim["gates"] = [up, low]
    assert "do not sort" in draft.refused()
    assert draft.measured() > 0.1


@pytest.mark.parametrize("place", range(6))
def test_a_comparator_that_is_left_out(draft: Draft, place: int) -> None:
    """Both gates of one pair are closed, in every round that has it."""
    _, claim = exchanges(draft)[place]
    low, up = claim["gates"]
    start = draft.held.start
    closed = float(start[:, [low, up]].max())
    lower = int(np.flatnonzero(start[:, low] == 0)[0])
    for gate in (low, up):
        start[lower, gate] = closed
    assert draft.refused()
    draft.claims["sorting"] = []
    assert draft.refused()
    for gate in (low, up):
        start[lower + 1 :, gate] = closed
    assert draft.refused()


def test_two_wires_that_are_swapped_between_rounds(draft: Draft) -> None:
    """One gather takes tokens from other places, as its claim says."""
    gathers = [
        (number, head)
        for number, block in enumerate(draft.claims["blocks"])
        for head in block["heads"]
        if head["step"] == "gather"
    ]
    assert len(gathers) == 6
    for number, head in gathers:
        changed = copy.deepcopy(draft.claims)
        (own_head,) = changed["blocks"][number]["heads"]
        tau = own_head["tau"]
        tau[0], tau[1] = tau[1], tau[0]
        weights = replace(draft.weights, program=changed)
        assert "claimed mixture" in replace(draft, weights=weights).refused()
        assert head["tau"] != tau


def test_wires_swapped_in_weights_and_claims() -> None:
    """f swaps two tokens on the way; its own network is proved, and is not the sort."""

    def swapped(x: np.ndarray) -> np.ndarray:
        return np.sort(x, axis=-2)[..., [1, 0, 2, 3], :]

    draft = drafted(swapped, 4)
    assert not draft.refused()
    sort = traced(ordered, 4)
    draft.claims["sorting"][0]["lines"] = ends(sort)
    assert "is not f" in draft.refused(sort)


def test_a_sort_that_ends_in_the_wrong_order(draft: Draft) -> None:
    falling = traced(lambda x: np.sort(x, axis=-2)[..., ::-1, :])
    for lines in (ends(falling), ends(falling)[::-1]):
        draft.claims["sorting"][0]["lines"] = lines
        assert "is not f" in draft.refused(falling)


@pytest.mark.parametrize("draft", [2], indirect=True)
def test_one_claim_for_two_multisets(draft: Draft) -> None:
    """Both registers sort the first coordinate; f sorts both."""
    W_in = draft.held.W_in
    second = int(np.flatnonzero(W_in[:, 1])[0])
    W_in[second] = [1.0, 0.0]
    for lines in (ends(draft.f, 0), ends(draft.f, 1)):
        for claim in draft.claims["sorting"]:
            claim["lines"] = lines
        assert "is not f" in draft.refused()
    claims = draft.claims["sorting"]
    draft.weights.program["sorting"] = [claims[0], {**claims[0], "lines": ends(draft.f, 1)}]
    assert "sorted twice" in draft.refused()


def test_a_token_that_is_gathered_twice_before_the_sort() -> None:
    repeated = drafted(lambda x: np.sort(x[..., [0, 0, 2, 3], :], axis=-2), 4)
    sort = traced(ordered, 4)
    if "sorting" in repeated.claims:
        repeated.claims["sorting"][0]["lines"] = ends(sort)
    assert "is not f" in repeated.refused(sort)


@pytest.mark.parametrize("blocks", [(0, 0), (0, 4), (1, 5), (2, 3), (5, 5)])
def test_a_part_of_the_network_does_not_sort(draft: Draft, blocks: tuple[int, int]) -> None:
    draft.claims["sorting"][0]["blocks"] = list(blocks)
    assert "do not sort" in draft.refused()


def test_a_claim_about_another_register(draft: Draft) -> None:
    for register in range(draft.held.W_in.shape[0]):
        draft.claims["sorting"][0]["register"] = register
        said = draft.refused()
        assert (said == "") == (register == exchanges(draft)[0][1]["register"])


def test_wires_that_are_read_on_the_way_are_nothing_that_f_has(draft: Draft) -> None:
    """The result is what a gather of the last round holds: not yet sorted."""
    last = draft.claims["blocks"][-1]["heads"][0]
    assert last["step"] == "gather"
    W_O = draft.array(len(draft.claims["blocks"]) - 1, "W_O")[0]
    (register,) = np.flatnonzero(W_O.any(axis=1))
    draft.held.W_out[:] = 0.0
    draft.held.W_out[0, register] = 1.0
    assert "is not f" in draft.refused()


def test_lines_that_are_no_sort_of_f_prove_nothing(draft: Draft) -> None:
    honest = draft.claims["sorting"][0]["lines"]
    for lines in (honest[::-1], [0] * 8, [2**31] * 8, list(range(8))):
        draft.claims["sorting"][0]["lines"] = lines
        assert draft.refused()


@pytest.mark.parametrize(
    "said",
    [
        None, 3, "x", {}, [None], [[]], [{}], [{"register": 0}],
        [{"register": -1, "blocks": [0, 5], "lines": list(range(8))}],
        [{"register": 0, "blocks": [5, 0], "lines": list(range(8))}],
        [{"register": 0, "blocks": [0, 99], "lines": list(range(8))}],
        [{"register": 0, "blocks": [0], "lines": list(range(8))}],
        [{"register": 0, "blocks": [0, 5], "lines": list(range(7))}],
        [{"register": 0, "blocks": [0, 5], "lines": [0.5] * 8}],
        [{"register": True, "blocks": [0, 5], "lines": list(range(8))}],
        [{"register": 0, "blocks": [0, 5], "lines": [2**40] * 8}],
    ],
)  # fmt: skip
def test_malformed_claims_of_sorts(draft: Draft, said: Any) -> None:
    draft.claims["sorting"] = said
    assert "program" in draft.refused()


def test_a_million_claims_are_too_much_work(draft: Draft) -> None:
    with pytest.raises(WorkLimitError, match="max_work"):
        check_program(draft.weights, draft.f, Claimed(0, 10**8, ()), Limits())
    for n, what in ((10**5, "max_work"), (12_000, "max_memory")):
        wide = replace(draft.weights, seq_len=n)
        with pytest.raises(WorkLimitError, match=what):
            check_program(wide, draft.f, Claimed(0, 0, (1,) * 6), Limits(10**4))


PROGRAMS: list[tuple[Function, int]] = [
    (lambda x: np.sort(x, -2) + 2 * x, 5),
    (lambda x: np.sort(np.tanh(x), -2), 3),
    (lambda x: np.sort(x - x.mean(-2, keepdims=True), -2)[..., ::-1, :], 6),
    (lambda x: np.sort(x, -2) - x.max(-2, keepdims=True), 7),
    (lambda x: np.sort(x, -2)[..., 2:3, :] - x, 5),
]


@pytest.mark.parametrize(("function", "n"), PROGRAMS)
@pytest.mark.parametrize("variant", ["odd-even", "log-depth"])
def test_sorts_inside_of_programs(function: Function, n: int, variant: Any) -> None:
    method = ef.Compile(variant=variant)
    built = ef.construct(ef.Target(function, n, 1), tol=1e-6, method=method)
    assert built.certificate.verdict.name == "PROVED"


@pytest.mark.unhooked
def test_an_unknown_variant_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"variant='quick'.*odd-even.*log-depth"):
        ef.Compile(variant="quick")  # pyright: ignore[reportArgumentType]
