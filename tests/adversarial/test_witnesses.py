"""Witnesses that lie: attention that does not select, or does not tell positions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from tests.checks.test_own_attention import mine
from torch import nn
from torch.export import ExportedProgram

import everyformer as ef
from everyformer.checks.own_attention.forms import NotAffine
from everyformer.checks.own_attention.realise import with_own_attention
from everyformer.checks.own_attention.witness import (
    Added,
    added_by,
    positions_told,
    tokens_heard,
    what_it_adds,
    what_it_seems_to_add,
)
from everyformer.checks.own_attention.witness import (
    exported as exported_layer,
)
from everyformer.errors import InputError

WIDTH = N = 2
C = torch.tensor([0.0, 1.0], dtype=torch.float64)
M = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)


def found(condition: str, added: Added) -> Any:
    if condition == "attentive":
        return tokens_heard([added], M)
    return positions_told("Layer", added, C)


def honest(condition: str) -> nn.Module:
    witness = mine.GainWitness()
    if condition == "attentive":
        return witness.attentive(WIDTH, N, M)[0]
    return witness.position_aware(WIDTH, N, C)


@pytest.fixture(scope="module")
def exported() -> dict[str, ExportedProgram]:
    """The honest layers, exported once: lies about weights need no other operations."""
    return {
        condition: exported_layer(honest(condition).eval(), WIDTH, N)
        for condition in ("attentive", "position_aware")
    }


def with_weights(
    program: ExportedProgram, condition: str, change: Callable[[nn.Module], Any]
) -> Any:
    """What is found of the honest operations with other weights."""
    layer = honest(condition)
    change(layer)
    kept = {name: weight.clone() for name, weight in program.state_dict.items()}
    try:
        with torch.no_grad():
            for name, weight in layer.state_dict().items():
                program.state_dict[name].copy_(weight)
        return found(condition, added_by(program, N, WIDTH))
    finally:
        with torch.no_grad():
            for name, weight in kept.items():
                program.state_dict[name].copy_(weight)


def weights(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Any], nn.Module]:
    def apply(layer: nn.Module) -> nn.Module:
        with torch.no_grad():
            change(dict(layer.named_parameters())[name])
        return layer

    return apply


class Wrapped(nn.Module):
    """A layer, and something else that it does."""

    def __init__(self, layer: nn.Module, more: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.more = layer, more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.more(x)


def also(more: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], nn.Module]:
    return lambda layer: Wrapped(layer, more)


def only_with_numbers(x: torch.Tensor) -> torch.Tensor:
    """Something else outside of exports."""
    return 0 * x if torch.compiler.is_exporting() else 0.5 * x.flip(-2)


def by_its_numbers(x: torch.Tensor) -> torch.Tensor:
    return x if float(x.sum()) > 1e5 else 0 * x


def attending(layer: Any) -> nn.Module:
    """Scores that move with the tokens, a little."""
    with torch.no_grad():
        layer.query.weight.fill_(1e-3)
        layer.key.weight.fill_(1e-3)
    return layer


def fill(value: float) -> Callable[[torch.Tensor], Any]:
    return lambda weight: weight.fill_(value)


def nudge(weight: torch.Tensor) -> None:
    weight[0] = torch.nextafter(weight[0], torch.tensor(2.0, dtype=torch.float64))


def one_entry(index: int, value: float) -> Callable[[torch.Tensor], Any]:
    def change(weight: torch.Tensor) -> None:
        weight.view(-1)[index] = value

    return change


Lies = list[tuple[str, Callable[[Any], nn.Module], str]]

WEIGHTS: Lies = [
    ("position_aware", weights("gain", fill(1.0)), "does not tell positions 1 and 2"),
    ("position_aware", weights("value.weight", fill(1e-30)), "depends on number"),
    ("position_aware", weights("value.bias", fill(1.0)), "where c is 0"),
    ("attentive", weights("gain", one_entry(0, 0.0)), "token 1 gets 0 of token 2"),
    ("attentive", weights("gain", one_entry(1, -1.0)), "gets -1 of token 1"),
    ("attentive", weights("value.weight", one_entry(0, 1e-9)), "where M is 0"),
    ("attentive", weights("value.bias", fill(1e-9)), "adds a constant"),
    ("attentive", attending, "depend on the tokens"),
]

LAYERS: Lies = [
    ("position_aware", weights("gain", fill(float("nan"))), "not finite"),
    ("position_aware", also(lambda x: 1e-300 * x * x), "multiplied"),
    ("position_aware", lambda layer: layer.float(), "float32"),
    ("attentive", also(lambda x: x.mean(0, keepdim=True)), "in a batch"),
    ("attentive", also(lambda x: x * float("inf") * 0), "not finite"),
    ("attentive", also(lambda x: torch.where(x > 900, x, 0 * x)), r"is not known|bool"),
    ("attentive", also(lambda x: torch.rand_like(x)), r"another output|rand"),
    ("attentive", also(lambda x: 1e-30 * torch.sin(x)), "sin is not known"),
    ("attentive", also(only_with_numbers), "export"),
    ("attentive", also(by_its_numbers), r"reads numbers|export"),
    ("attentive", lambda _: nn.Identity(), "gets 0 of token 1"),
    ("attentive", lambda _: nn.Flatten(), "keeps the shape"),
]


@pytest.mark.parametrize(("condition", "change", "why"), WEIGHTS)
def test_weights_that_do_not_meet_the_condition_are_refused(
    condition: str,
    change: Callable[[Any], nn.Module],
    why: str,
    exported: dict[str, ExportedProgram],
) -> None:
    with pytest.raises((InputError, NotAffine), match=why):
        with_weights(exported[condition], condition, change)


@pytest.mark.parametrize(("condition", "change", "why"), LAYERS)
def test_a_layer_that_does_something_else_is_refused(
    condition: str, change: Callable[[Any], nn.Module], why: str
) -> None:
    with pytest.raises((InputError, NotAffine), match=why):
        found(condition, what_it_adds(change(honest(condition)), WIDTH, N))


def test_the_honest_witness_passes_and_an_ulp_is_counted(
    exported: dict[str, ExportedProgram],
) -> None:
    attentive, telling = exported["attentive"], exported["position_aware"]
    assert with_weights(attentive, "attentive", lambda _: None) == 0
    places = with_weights(telling, "position_aware", lambda _: None)
    assert places[1] == (Fraction(1, 2),) * 2
    assert 0 < with_weights(attentive, "attentive", weights("gain", nudge)) < 1e-12


class Hidden(mine.GainWitness):
    """A witness whose layer cannot be followed; what it hides is of a given size."""

    def __init__(self, size: float) -> None:
        self.size = size

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> list[nn.Module]:
        (layer,) = super().attentive(width, seq_len, M)

        def hidden(x: torch.Tensor) -> torch.Tensor:
            return self.size * torch.sin(x)

        return [Wrapped(layer, hidden)]


class Handing(mine.GainWitness):
    """Tells positions, and hands out something else for the other condition."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> Any:
        return self.given


def test_what_is_only_measured_is_conditional_and_never_believed_at_once() -> None:
    target = ef.targets.reverse(2, 1)
    built = ef.construct(target, grid=2, method=ef.Averaging(positional=True))
    found = with_own_attention(built.network, Hidden(1e-30), assume=True)
    assert found.report(built.certificate).startswith(
        "PROVED, CONDITIONAL on the declared attention of the witness: "
    )
    (layer,) = Hidden(1e-3).attentive(WIDTH, N, M)
    with pytest.raises(InputError, match="fixed combination"):
        what_it_seems_to_add(layer, WIDTH, N)


def test_a_witness_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no layers"):
        tokens_heard([], M)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("witness", "why"),
    [
        (mine.GainWitness, "The class GainWitness is not a witness"),
        (nn.Identity(), "A Identity object is not a witness"),
        (None, "A NoneType object is not a witness"),
        (Handing(nn.Identity()), "attentive.* gave a Identity, .* Give a list of layers"),
        (Handing(None), "attentive.* gave a NoneType"),
        (Handing([1]), "gave a int, which is not an nn.Module"),
        (Handing([]), "no layers"),
        (Handing([nn.Identity()]), "do not select: token 1 gets 0 of token 1 instead of 1"),
    ],
)
def test_what_is_no_witness_is_refused(witness: Any, why: str) -> None:
    target = ef.targets.reverse(2, 1)
    built = ef.construct(target, grid=2, method=ef.Averaging(positional=True))
    with pytest.raises(InputError, match=why):
        with_own_attention(built.network, witness)
