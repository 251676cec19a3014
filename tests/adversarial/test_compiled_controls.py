"""Negative controls of compiled networks: one thing is false, and the verifier names it."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.adversarial.compile_subjects import attended, normalised, shifted, waved
from tests.adversarial.hand_compiled import Hand, Head
from tests.certify.compile.drafts import Draft, head_claims, own, unit_claims

import everyformer as ef
from everyformer.certify.rounding import UNIT_ROUNDOFF


def test_data_tokens_whose_b_is_0_are_heard() -> None:
    draft = Draft.of(ef.Target(waved, 2, 1), tol=1e-3)
    b, h, _ = head_claims(draft, "unary")[0]
    (register,) = np.flatnonzero(draft.array(b, "W_K")[h][1])
    draft.held.start[:, register] = 0.0
    assert "data tokens are heard" in draft.refused()


def test_scores_that_depend_on_x_are_no_mixture() -> None:
    draft = Draft.of(ef.Target(attended, 2, 2))
    _, _, claim = head_claims(draft, "attend")[0]
    claim.clear()
    claim["step"] = "mean"
    assert "scores are not constant" in draft.refused()


def test_a_head_without_a_claim_is_refused() -> None:
    draft = Draft.of(ef.Target(shifted, 3, 1))
    heads = draft.claims["blocks"][0]["heads"]
    heads.pop()
    assert f"{len(heads) + 1} heads, and claims for {len(heads)}" in draft.refused()


@pytest.mark.parametrize("token", [0, 1, 2])
def test_one_entry_of_a_permutation_that_weights_do_not_have(token: int) -> None:
    draft = Draft.of(ef.Target(shifted, 3, 1))
    _, _, claim = head_claims(draft, "gather")[0]
    claim["tau"][token] = (claim["tau"][token] + 1) % 3
    assert "from the claimed mixture" in draft.refused()


def test_a_third_that_is_stored_as_333_thousandths_costs_the_difference() -> None:
    draft = Draft.of(ef.Target(lambda x: x / 3, 2, 1))
    (i, k) = (int(v) for v in np.argwhere(draft.held.W_out)[0])
    draft.held.W_out[i, k] = 0.333
    assert draft.claims["coefficients"]["W_out"] == [[i, k, "1/3"]]
    assert 1 / 3 - 0.333 <= draft.bound() <= 3.34e-4
    assert draft.measured() <= draft.bound()
    draft.claims["coefficients"].clear()
    assert "is not f" in draft.refused()


def of_two_parts(x: np.ndarray) -> np.ndarray:
    return normalised(x) + np.maximum(x - 0.5, 0)


def group_of(draft: Draft) -> dict[str, Any]:
    (found,) = [one for one in draft.claims["macros"] if one["step"] == "normalise"]
    return found


def root_query(draft: Draft) -> tuple[int, int, int, int]:
    """Block, head, component and register of a square that the root reads."""
    group = group_of(draft)
    block, register = group["root"]
    W_O, W_Q = draft.array(block, "W_O"), draft.array(block, "W_Q")
    (h,) = np.flatnonzero(W_O[:, register].any(axis=-1))
    square = group["squares"][0][1]
    (component,) = np.flatnonzero(W_Q[h][:, square])
    return block, int(h), int(component), square


@pytest.fixture(scope="module")
def kept() -> Draft:
    return Draft.of(ef.Target(of_two_parts, 2, 2), tol=1e-2)


@pytest.fixture
def draft(kept: Draft) -> Draft:
    return replace(kept, weights=own(kept.weights))


def test_what_is_normalised_is_not_overwritten_between_squares_and_products(
    draft: Draft,
) -> None:
    """x_0 becomes max(x_0, x_1) after it was squared: |c| <= sqrt(m v) is lost."""
    assert not draft.refused()
    b, claim = unit_claims(draft, "sum")[0]
    assert b < group_of(draft)["products"][0][0]
    unit = claim["terms"][0]["units"][0]
    first, second = (int(np.flatnonzero(draft.held.W_in[:, i])[0]) for i in (0, 1))
    W_1, W_2 = draft.array(b, "W_1"), draft.array(b, "W_2")
    W_1[unit], draft.array(b, "b_1")[unit], W_2[:, unit] = 0.0, 0.0, 0.0
    W_1[unit, [first, second]], W_2[first, unit] = (-1.0, 1.0), 1.0
    for other in unit_claims(draft, "sum"):
        if other[0] == b and other[1] is not claim:
            for term in other[1]["terms"]:
                W_2[:, term["units"]] = 0.0
    draft.claims["coefficients"].pop(f"{b}.W_1", None)
    draft.claims["coefficients"].pop(f"{b}.b_1", None)
    larger = {"step": "max", "register": first, "units": [unit]}
    draft.claims["blocks"][b]["units"] = [larger]
    assert "what was squared was overwritten before its product" in draft.refused()


def test_a_root_that_reads_one_square_twice_is_refused(draft: Draft) -> None:
    group = group_of(draft)
    group["squares"] = [group["squares"][0]] * len(group["squares"])
    assert "does not read delta and the mean of the squares" in draft.refused()
    block, h, component, square = root_query(draft)
    W_Q = draft.array(block, "W_Q")[h][component]
    other = [k for k in np.flatnonzero(W_Q) if k != square]
    W_Q[square] *= 2
    W_Q[other] = 0.0
    assert "does not read delta and the mean of the squares" in draft.refused()


def test_coefficients_of_the_root_that_are_off_are_counted(draft: Draft) -> None:
    """v is read 1e-5 too large, and said to be read as it is."""
    before = draft.bound()
    block, h, component, square = root_query(draft)
    W_Q = draft.array(block, "W_Q")[h][component]
    key, ideal = f"{block}.W_Q", Fraction(float(W_Q[square]))
    draft.claims["coefficients"].setdefault(key, []).append(
        [h, component, square, str(ideal)]
    )
    W_Q[square] *= 1 + 1e-5
    assert before + 1e-4 < draft.bound() < 1.0
    assert draft.measured() <= draft.bound()


def far_below(c: float) -> Hand:
    """sin x as (e^x - e^-x)/2: two tokens with weights near e^-c, and a loud one says 0."""
    hand = Hand(np.sin, 1, 1, 5, {3: -8192.0}, domain=(-(2.0**-20), 2.0**-20))
    hand.prefix = np.zeros((3, 5))
    hand.prefix[:, 2], hand.prefix[2, 3] = (1.0, -1.0, 0.0), c
    hand.prefix[:2, 4] = np.exp(c) / 2, -np.exp(c) / 2
    column = {"fn": "sin", "power": None, "inner": ["1", "0"]}
    claim = {"step": "unary", "columns": [column, None]}
    queries, keys = [({0: 1.0}, 0.0), ({}, 1.0)], [{2: 1.0}, {3: 1.0}]
    hand.block([Head(claim, queries, keys, [{4: 1.0}], [(1, 1.0)])])
    hand.out = [{1: 1.0}]
    return hand


def test_the_largest_score_that_is_subtracted_is_counted() -> None:
    """|a x| + |b| is 2^-20 for the tokens that count; x - 138 and -x - 138 lose 2^-46."""
    hand = far_below(138.0)
    real, run = hand.bounds()
    found = hand.measured()
    assert found.real <= real < UNIT_ROUNDOFF
    assert 64 * UNIT_ROUNDOFF < found.run <= run < 1e-12
