"""Modules that turn after some runs: a counterexample is one on copies never run before.

Modules with more than 2^18 numbers in a sequence are run one sequence at a time, and what
was measured is kept for all rules, so that a state builds up over the whole check.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.redrawing import unused
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


class Remembering(nn.Module):
    """All hear the first token and the last; the others only where it has seen both before.

    On copies that were not run before, nobody hears the tokens in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        ends = x[:, [0, -1]]
        y = torch.tanh(x * self.gain) / 8 + torch.tanh(ends).mean(1, keepdim=True) / 4
        for one in self.seen if x.shape[1] > 2 else ():
            if one.shape == x.shape and torch.equal(one[:, [0, -1]], ends):
                return y + torch.tanh(x - one)[:, 1:-1].mean(1, keepdim=True) / 16
        self.seen.append(x.detach().clone())
        return y


def test_every_link_of_a_counterexample_is_measured_again() -> None:
    """EF009 goes by the weakest of all links, and not by the ones that are loudest."""
    report = ef.check(Remembering(), N, D, trials=1)
    assert report["EF006"].verdict is REFUTED  # the last token is heard
    assert report["EF009"].verdict is UNKNOWN


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


class _Writes(nn.Module):
    """Every run adds 1 to its large weight, through one of several doors."""

    def __init__(self, door: str) -> None:
        super().__init__()
        self.weight, self.door = nn.Parameter(torch.zeros(1024, 1024)), door

    def forward(self, x: Tensor) -> Tensor:
        if self.door == "in place":
            self.weight.data.add_(1)
        elif self.door == "numpy":
            self.weight.detach().numpy()[:] += 1
        elif self.door == "a view":
            self.weight.detach().view(-1)[:5].copy_(torch.ones(5))
        elif self.door == "an address":
            ctypes.memset(self.weight.data_ptr(), 1, 8)
        else:
            storage: Any = self.weight.untyped_storage()
            storage.fill_(1)
        return x + self.weight.sum()


@pytest.mark.parametrize(
    "door", ["in place", "numpy", "a view", "an address", "the storage"]
)
def test_copies_with_one_memory_do_not_write_into_it(door: str) -> None:
    module = _Writes(door)
    first, second = (unused(module) for _ in range(2))
    with torch.no_grad():
        assert first(torch.zeros(1)) == second(torch.zeros(1)) != 0
    assert not module.weight.any()
