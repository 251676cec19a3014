"""The operations of a module, if it does nothing else when it is run."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from everyformer.checks.following.honesty import dishonesty
from everyformer.checks.following.own_tensors import not_its_own
from everyformer.checks.following.states import goes_by_a_state

KEPT = (
    "scaled_dot_product_attention.default",
    "linear.default",
    "matmul.default",
    "layer_norm.default",
    "softmax.int",
    "dropout.default",
)
"""Operations that have a rule of their own and are not taken apart."""


class NotFollowedError(ValueError):
    """Says in words why the operations of a module prove nothing."""


def export_honestly(
    module: nn.Module, x: torch.Tensor, others: Sequence[nn.Module] = ()
) -> ExportedProgram:
    """The operations of a module, without those that write in place.

    Args:
        module: The module.
        x: An input.
        others: The module with other weights, given in several ways, and not run yet.

    Raises:
        NotFollowedError: If they compute something else than the module: it has a state,
            reads what is not its own, or treats an export differently.
    """
    program = torch.export.export(module, (x,), strict=False)
    wave = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).sin().reshape(x.shape)
    again = program.module()
    for probe in (wave, torch.zeros_like(x), 30 * wave.flip(1)):
        with torch.no_grad():
            found, wanted = again(probe.clone()), module(probe.clone())
        if not torch.allclose(found, wanted, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise NotFollowedError("the exported operations compute something else")
    why = (
        _rewritten(module, program, wave)
        or dishonesty(module, again, wave)
        or not_its_own(module, wave)
        or goes_by_a_state(module, wave)
    )
    if why:
        raise NotFollowedError(why)
    if not all(_same_with_weights_of(other, again, wave) for other in others):
        raise NotFollowedError("it keeps what it made of its weights, or goes by them")
    return taken_apart(program)


def _same_with_weights_of(other: nn.Module, exported: nn.Module, x: torch.Tensor) -> bool:
    """Whether exported operations, with the weights of a module, compute what it does."""
    names = [name for name, _ in exported.named_parameters(remove_duplicate=False)]
    weights = {name: _attribute(other, name) for name in names}
    with torch.no_grad():
        wanted = other(x.clone())
        found = torch.func.functional_call(exported, weights, (x.clone(),))
    return torch.allclose(found, wanted, rtol=1e-6, atol=1e-9, equal_nan=True)


def _rewritten(module: nn.Module, program: ExportedProgram, x: torch.Tensor) -> str:
    """Why tensors that the operations read may not be constants; "" if they are.

    A forward that puts another tensor in the place of one, or writes into it, may change
    what the next run reads, by the numbers of its input.
    """

    def held() -> dict[str, tuple[int, int, int]]:
        found: dict[str, tuple[int, int, int]] = {}
        for spec in program.graph_signature.input_specs:
            if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                value = _attribute(module, spec.target or "")
                if isinstance(value, torch.Tensor):
                    version = value._version  # pyright: ignore[reportPrivateUsage]
                    where = value.data_ptr() if value.layout == torch.strided else 0
                    found[spec.target or ""] = (id(value), version, where)
        return found

    before = held()
    with torch.no_grad():
        module(x.clone())
    changed = [name for name, one in held().items() if before.get(name) != one]
    return f"a run writes {min(changed)}, which the next one reads" if changed else ""


def _attribute(module: nn.Module, path: str) -> Any:
    """What lies at a path of names; None if nothing does."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def taken_apart(program: ExportedProgram) -> ExportedProgram:
    """The same program in operations that have rules, none of which writes in place."""
    return program.run_decompositions(dict(_decompositions()))


@lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """What torch takes apart, without operations that have a rule of their own."""
    table = torch.export.default_decompositions()
    for name in KEPT:
        operation, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, operation), overload), None)
    return dict(table.items())
