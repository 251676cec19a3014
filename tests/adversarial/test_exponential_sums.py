"""Sums of exponentials by hand: a null token that lies, is not alone, or is not e^c.

And averages whose silent tokens f has, or has not: a mask that is a finite number.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from tests.adversarial.hand_compiled import Hand, Head, Unit

SUM = {"step": "exponential sum"}


def summed(x: np.ndarray) -> np.ndarray:
    return np.exp(x @ np.swapaxes(x, -1, -2)) @ x


@dataclass(frozen=True)
class Liar:
    """sum_k e^(x_j x_k) x_k with one head, and what is false about it.

    Attributes:
        c: The score of the null token.
        scale: What e^c is multiplied by in W_O.
        second: The score of another prefix token; None without one.
        says: What the null token says.
        keyed: The key of the null token that multiplies x_j.
        data: The key of data tokens in the component of the null token.
        query: The query of that component.
        claim: The claimed step.
    """

    c: float = 24.0
    scale: float = 1.0
    second: float | None = None
    says: float = 0.0
    keyed: float = 0.0
    data: float = 0.0
    query: float = 1.0
    claim: str = "exponential sum"

    def hand(self, domain: tuple[float, float] = (-1.0, 1.0)) -> Hand:
        """Registers: x, null, value, result, key; all values and keys are copies of x."""
        hand = Hand(summed, 2, 1, 5, domain=domain)
        hand.start = {1: [self.data] * 2}
        rows = [[self.keyed, self.c, self.says]]
        if self.second is not None:
            rows.append([0.0, self.second, 1.0])
        hand.prefix = np.zeros((len(rows), 5))
        hand.prefix[:, :2] = [row[:2] for row in rows]
        hand.prefix[:, 2] = [row[2] for row in rows]
        factor = self.scale * math.exp(self.c)
        head = Head({"step": self.claim}, [({0: 1.0}, 0.0), ({}, self.query)],
                    [{0: 1.0}, {1: 1.0}], [{0: 1.0, 2: 1.0}], [(3, factor)])  # fmt: skip
        hand.block([head])
        hand.out = [{3: 1.0}]
        return hand


def test_an_honest_sum_is_proved_about_as_well_as_it_can_be() -> None:
    hand = Liar().hand()
    assert not hand.refused()
    (real, _), found = hand.bounds(), hand.measured()
    S = 2 * math.e
    assert found.real <= real <= S * S * math.exp(-24) * 1.001 + 1e-14
    assert hand.is_honest()


@pytest.mark.rows(20)
@pytest.mark.parametrize("c", [0.0, 1.0, 8.0, 36.0, 60.0, 130.0, -5.0])
@pytest.mark.parametrize("scale", [1.0, 1 + 2.0**-50, 1.001, 0.5, -1.0, 0.0])
def test_whatever_the_null_score_and_the_factor_are_the_bound_holds(
    c: float, scale: float
) -> None:
    assert Liar(c, scale).hand().is_honest()


def test_a_factor_that_is_not_e_to_the_c_costs_what_it_changes() -> None:
    real, _ = Liar(scale=1.001).hand().bounds()
    assert real >= 1e-3 * 2 * math.e


@pytest.mark.parametrize(
    ("liar", "why"),
    [
        (Liar(says=1e-9), "says something"),
        (Liar(second=24.0), "beside the null token"),
        (Liar(second=-700.0), "beside the null token"),
        (Liar(keyed=1e-9), "score of its own"),
        (Liar(data=1e-9), "score of its own"),
        (Liar(query=0.999), "score of its own"),
        (Liar(query=0.0), "no null token"),
        (Liar(c=0.0), "no null token"),
        (Liar(claim="attend"), "prefix tokens are heard"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_null_token_that_is_not_one_is_refused(liar: Liar, why: str) -> None:
    assert why in liar.hand().refused()


@pytest.mark.parametrize("c", [2.0**11, -(2.0**11), 2.0**199])
def test_a_null_score_beyond_all_measure_is_refused(c: float) -> None:
    hand = Liar().hand()
    assert hand.prefix is not None
    hand.prefix[0, 1] = c
    assert hand.refused()


def test_a_second_prefix_token_far_below_may_say_anything() -> None:
    hand = Liar(second=-900.0).hand()
    assert not hand.refused()
    assert hand.is_honest()


@pytest.mark.parametrize("size", [4.0, 8.0, 20.0, 26.0])
def test_scores_above_the_null_token_are_counted(size: float) -> None:
    """x_j x_k reaches size^2, far above c = 24: the weights are those of a softmax."""
    hand = Liar().hand((-size, size))
    assert hand.is_honest()
    assert hand.refused() or hand.bounds()[0] > math.exp(2 * size**2 - 24)


def copied(gate: float) -> Hand:
    """Keys and values are a copy of a register that holds 7 on the prefix token."""
    hand = Hand(summed, 2, 1, 6)
    hand.prefix = np.zeros((1, 6))
    hand.prefix[0, [0, 1, 2]] = 7.0, 24.0, gate
    terms = [{"as": "copy", "units": [0, 1], "gate": 2}]
    copies = [Unit({0: c, 2: -1.0}, 0.0, 4, c) for c in (1.0, -1.0)]
    hand.block([], copies, [{"step": "sum", "register": 4, "terms": terms}])
    hand.block([Head(SUM, [({0: 1.0}, 0.0), ({}, 1.0)], [{4: 1.0}, {1: 1.0}],
                     [{4: 1.0}], [(3, math.exp(24))])])  # fmt: skip
    hand.out = [{3: 1.0}]
    return hand


def test_keys_that_were_written_are_known_on_prefix_tokens_only_behind_a_gate() -> None:
    assert not copied(64.0).refused()
    assert copied(64.0).is_honest()
    for gate in (0.0, 13.0, 14.0, -64.0):
        assert "keys of prefix tokens are not known" in copied(gate).refused()


def masked(gap: float, live: float, f_hears_all: bool = False) -> Hand:
    """Token 1 does not hear token 2, which scores `gap` less, but for x_j x_k live."""
    mask = np.ones((2, 2)) if f_hears_all else np.tri(2)
    hand = Hand(lambda x: (np.exp(live * x @ np.swapaxes(x, -1, -2)) * mask) @ x, 2, 1, 6)
    hand.start = {4: [1.0, 0.0], 5: [0.0, -gap]}
    hand.prefix = np.zeros((1, 6))
    hand.prefix[0, 1] = 24.0
    queries = [({0: live}, 0.0), ({}, 1.0), ({4: 1.0}, 0.0)]
    keys = [{0: 1.0}, {1: 1.0}, {5: 1.0}]
    hand.block([Head(SUM, queries, keys, [{0: 1.0}], [(3, math.exp(24))])])
    hand.out = [{3: 1.0}]
    return hand


@pytest.mark.parametrize("live", [1.0, 4.0])
def test_a_token_is_left_out_only_if_no_input_makes_it_heard(live: float) -> None:
    for gap in (1.0, 700.0, 776.0 - 24.0):
        assert "is not f" in masked(gap, live).refused()
    assert not masked(900.0 + live, live).refused()
    assert masked(900.0 + live, live).is_honest()
    assert "is not f" in masked(900.0 + live, live, f_hears_all=True).refused()


def test_a_sum_is_not_an_average_and_an_average_not_a_sum() -> None:
    hand = Liar().hand()
    hand.target = lambda x: (
        summed(x) / np.exp(x @ np.swapaxes(x, -1, -2)).sum(-1, keepdims=True)
    )
    assert "is not f" in hand.refused()
    hand.target = lambda x: summed(x) * np.exp(x * x / 4)
    assert "is not f" in hand.refused()


def averaged(gap: float, *, everyone: bool, f_hears_all: bool, off: float = 0.0) -> Hand:
    """Attention in which token 1 hears token 2 with a score that is `gap` less."""
    mask = np.array([[0.0, -gap], [0.0, 0.0]])

    def attended(x: np.ndarray) -> np.ndarray:
        scores = x @ np.swapaxes(x, -1, -2)
        weights = np.exp(scores + mask) if f_hears_all else np.exp(scores) * np.tri(2)
        return weights / weights.sum(axis=-1, keepdims=True) @ x

    hand = Hand(attended, 2, 1, 4)
    hand.start = {1: [1.0, 0.0], 2: [0.0, -gap - off]}
    claim = {"step": "attend", **({"everyone": True} if everyone else {})}
    queries = [({0: 1.0}, 0.0), ({1: 1.0}, 0.0)]
    hand.block([Head(claim, queries, [{0: 1.0}, {2: 1.0}], [{0: 1.0}], [(3, 1.0)])])
    hand.coefficients = {"start": [[1, 2, str(-int(gap))]]} if off else {}
    hand.out = [{3: 1.0}]
    return hand


@pytest.mark.parametrize("gap", [1e3, 1e4, 1e9, 1e30])
def test_silent_tokens_of_f_cost_next_to_nothing(gap: float) -> None:
    """Without the claim it is not f, though the difference is e^-1000."""
    hand = averaged(gap, everyone=True, f_hears_all=True)
    assert hand.bounds()[0] < 1e-150
    assert hand.is_honest()
    assert "is not f" in averaged(gap, everyone=False, f_hears_all=True).refused()


@pytest.mark.parametrize("gap", [1.0, 30.0, 700.0, 790.0, 1e4])
def test_who_is_said_to_be_in_the_sum_must_be_in_f(gap: float) -> None:
    assert "is not f" in averaged(gap, everyone=True, f_hears_all=False).refused()
    assert averaged(gap, everyone=True, f_hears_all=True).is_honest()


@pytest.mark.parametrize("off", [0.5, 2.0, 9_000.0, -9_990.0])
def test_a_mask_that_stands_for_another_number_is_followed_or_refused(off: float) -> None:
    """The stored score is off by so much: what is silent is so for the ideal one too."""
    hand = averaged(1e4, everyone=True, f_hears_all=True, off=off)
    assert hand.is_honest()
    assert abs(off) < 1 or hand.refused() or hand.bounds()[0] > 0.9
