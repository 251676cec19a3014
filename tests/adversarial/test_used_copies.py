"""Modules that turn after some runs: a counterexample is one on copies never run before.

Modules with more than 2^18 numbers in a sequence are run one sequence at a time, and what
was measured is kept for all rules, so that a state builds up over the whole check.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.subject import LARGEST_RUN
from everyformer.verdict import Verdict

REFUTED, UNKNOWN = Verdict.REFUTED, Verdict.UNKNOWN
N, D = 8, LARGEST_RUN // 16 + 4


class Turning(nn.Module):
    """tanh, token by token; in some runs every token hears those before or after it."""

    def __init__(self, turns: Callable[[int], bool], *, ahead: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))
        self.turns, self.ahead = turns, ahead
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        y = torch.tanh(x * self.gain)
        if not self.turns(self.runs):
            return y
        return y + x.flip(1) if self.ahead else y.cumsum(1)


TURNS: dict[str, tuple[Callable[[int], bool], bool]] = {
    "from run 11 on": (lambda k: k > 10, False),
    "in every eleventh run": (lambda k: k % 11 == 0, True),
    "in run 11": (lambda k: k == 11, True),
    "in run 5": (lambda k: k == 5, False),
}


@pytest.mark.parametrize("name", TURNS)
def test_a_copy_that_was_run_makes_no_counterexample(name: str) -> None:
    turns, ahead = TURNS[name]
    report = ef.check(Turning(turns, ahead=ahead), N, D, trials=1)
    for code in ("EF001", "EF003", "EF006", "EF009", "EF010"):
        assert report[code].verdict is UNKNOWN, code
    assert report.lp.verdict is UNKNOWN


class Ahead(nn.Module):
    """Hears the next token, with a strength that the weights have."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(strength))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + self.strength * x.roll(-1, 1)


@pytest.mark.parametrize(("strength", "drawn"), [(1.0, False), (0.0, True)])
def test_large_modules_have_counterexamples(strength: float, drawn: bool) -> None:
    """With the weights they came with, and with others; both run again."""
    found = ef.check(Ahead(strength), N, D, trials=2)["EF006"]
    assert found.verdict is REFUTED
    assert found.counterexample is not None
    assert (found.counterexample.seed is not None) is drawn
