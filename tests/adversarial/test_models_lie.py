"""Modules that keep what they made of weights or tokens, or go by their batch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.errors import InputError
from everyformer.verdict import Verdict

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN
F = nn.functional
N, D = 5, 4


class Biased(nn.Module):
    """Attention with a bias c_{i-j} that begins at 0, gathered in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(D, D), nn.Linear(D, D)
        self.table = nn.Parameter(torch.zeros(2 * N - 1))
        places = torch.arange(N)
        self.offsets = places[:, None] - places + N - 1
        self.kept: dict[str, Tensor] = {}
        self.held: Tensor | None = None
        self.plain = False

    def bias(self) -> Tensor:
        return self.table[self.offsets]

    def forward(self, x: Tensor) -> Any:
        return (self.query(x) @ x.mT + self.bias()).softmax(-1) @ self.value(x)


class KeptInFirstRun(Biased):
    """As in LeViT: outside training the bias is gathered once."""

    def bias(self) -> Tensor:
        if "cpu" not in self.kept:
            self.kept["cpu"] = super().bias().detach()
        return self.kept["cpu"]


class ClearedByTraining(KeptInFirstRun):
    """The same, and a step of training begins with an empty cache."""

    def train(self, mode: bool = True) -> "ClearedByTraining":
        super().train(mode)
        self.kept = {} if mode else self.kept
        return self


class KeptByEval(Biased):
    """As in TinyViT: `eval` gathers the bias."""

    def train(self, mode: bool = True) -> "KeptByEval":
        super().train(mode)
        self.held = None if mode else self.table.detach()[self.offsets]
        return self

    def bias(self) -> Tensor:
        return super().bias() if self.held is None else self.held


class LeftOutByEval(Biased):
    """`eval` looks whether there is a bias at all."""

    def train(self, mode: bool = True) -> "LeftOutByEval":
        super().train(mode)
        self.plain = not mode and not bool(self.table.detach().any())
        return self

    def bias(self) -> Tensor:
        return torch.zeros(()) if self.plain else super().bias()


@pytest.mark.parametrize(
    "kind", [KeptInFirstRun, ClearedByTraining, KeptByEval, LeftOutByEval]
)
def test_what_is_kept_of_weights_is_no_constant(kind: type[Biased]) -> None:
    """Where the bias is 0, permutations commute; with other weights they do not."""
    report = ef.check(kind(), N, D, trials=2)
    assert report["EF001"].verdict is REFUTED
    assert report["EF010"].verdict is REFUTED
    assert report.lp.verdict is UNKNOWN


def test_a_bias_is_followed_where_nothing_is_kept() -> None:
    report = ef.check(Biased(), N, D, trials=2)
    assert report["EF001"].verdict is REFUTED
    assert report["EF003"].verdict is PROVED


class KeysOfFirstRun(nn.Module):
    """Attends to keys that it saw in its first run, as a static cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        keys = self.linear(x[:1]).detach() if self.keys is None else self.keys
        self.keys = keys
        return (x @ keys.mT).softmax(-1) @ keys


def test_a_cache_of_tokens_is_refused() -> None:
    """After its first run no token hears any other; in its first run all do."""
    with pytest.raises(InputError, match="after a run on another input"):
        ef.check(KeysOfFirstRun(), N, D, trials=2)


class Alias(nn.Module):
    """Adds positions by another name for their memory."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(N, D))
        self.layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True)
        self.held = SimpleNamespace(alias=torch.zeros(N - 1, D))
        if how == "parameter":
            self.alias = nn.Parameter(self.places.data)
        elif how == "buffer":
            self.register_buffer("alias", self.places.data[1:])
        else:
            self.held.alias = self.places.data[1:]

    def forward(self, x: Tensor) -> Tensor:
        alias = getattr(self, "alias", self.held.alias)
        if isinstance(alias, nn.Parameter):
            return self.layer(x + self.places - alias)
        return self.layer(x + F.pad(alias, (0, 0, 1, 0)))


@pytest.mark.parametrize("how", ["parameter", "buffer", "attribute of an object"])
def test_memory_with_two_names_is_refused(how: str) -> None:
    """A buffer that is a weight has no value; of two parameters neither is free."""
    with pytest.raises(InputError, match="lies in the memory of"):
        ef.check(Alias(how), N, D, trials=2)


class Normed(nn.Module):
    """Its weight lies in the memory of a parameter until the first run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_memory_that_a_run_does_not_read_is_not_refused() -> None:
    assert ef.check(Normed(), N, D, trials=2)["EF006"].verdict is PROVED


class InTheMiddle(nn.Module):
    """Causal alone and at the ends of a batch; inside of it, it looks ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).cumsum(1)
        return torch.cat([y[:1], y[1:-1] + x[1:-1].flip(1), y[-1:]]) if len(x) > 1 else y


def test_a_batch_makes_no_counterexample() -> None:
    report = ef.check(InTheMiddle(), N, D, trials=2)
    assert report["EF006"].verdict is PROVED
    assert report["EF001"].verdict is REFUTED
    assert report.lp.verdict is REFUTED


class Halves(nn.Module):
    """Weights of attention in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.bfloat16()
        return (y @ y.mT).softmax(-1) @ y


def test_weights_in_bfloat16_are_seen() -> None:
    report = ef.check(Halves(), N, D, trials=2)
    assert report["EF002"].verdict is not PROVED
    assert report["EF006"].verdict is not PROVED
