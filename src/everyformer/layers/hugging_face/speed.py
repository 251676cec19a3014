"""`speed_up` and `restore`: one line for a model that exists already."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from everyformer.errors import InputError
from everyformer.layers.hugging_face.classes import attention_of, place
from everyformer.layers.hugging_face.measuring import Measured, measure
from everyformer.layers.hugging_face.registering import Registered
from everyformer.layers.hugging_face.switch import has_gains, is_on, switch_off, switch_on


@dataclass(frozen=True)
class SpeedUp:
    """What `speed_up` has done.

    Attributes:
        model: The model, which runs on our operator now.
        modules: How many attention modules of each class there are.
        measured: Times before and after, if they were asked for.
    """

    model: nn.Module = field(repr=False)
    modules: Mapping[str, int]
    measured: Measured | None = None

    def measure(self, inputs: Mapping[str, Any], *, repeats: int = 5) -> Measured:
        """Times of the model without and with our operator, on the same inputs."""
        if not is_on(self.model):
            msg = f"{type(self.model).__name__} was restored. Call speed_up again."
            raise InputError(msg)

        def without(on: bool) -> None:
            (switch_on if on else switch_off)(self.model)

        return measure(self.model, inputs, without, repeats=repeats)

    def __str__(self) -> str:
        """What was changed, and the times if they were measured."""
        counts = ", ".join(f"{count} {name}" for name, count in self.modules.items())
        said = f"{type(self.model).__name__}: {counts} on everyformer's operator"
        return said if self.measured is None else f"{said}\n{self.measured}"


def speed_up(model: nn.Module, *, measure: Mapping[str, Any] | None = None) -> SpeedUp:
    """Let a model of transformers run on our operator, in place: the same numbers, faster.

    The bias of T5 and ALiBi goes to the operator as n_q + n_k - 1 numbers for each head
    instead of n_q n_k, with gradients to its table. No parameter changes, so optimisers,
    `save_pretrained` and PEFT see what they saw; what is saved is the model as it was.
    docs/hugging_face.md has a table of the classes, with what was compared.

    `attn_implementation="everyformer"` does the same when a model is loaded. The weights of
    `output_attentions=True` come from plain torch, at n x n numbers for each head. Outputs
    at padded tokens that see no key are 0, where transformers averages over hidden keys.

    Args:
        model: A model of transformers, or a module that holds one; changed in place.
        measure: Inputs of the model by name; its times before and after are printed.

    Returns:
        What was done. `print` shows it, `.measure(inputs)` takes the times.

    Raises:
        InputError: If a class of attention is not known; the model is unchanged then.

    Example:
        >>> import torch
        >>> speed_up(torch.nn.Linear(2, 2))
        Traceback (most recent call last):
        everyformer.errors.InputError: Linear cannot run on everyformer's operator: it is
        not a model of transformers. Nothing was changed.
    """
    switch_on(model)
    object.__setattr__(model, "everyformer_registered", Registered())
    modules = Counter(place(module).rpartition(".")[2] for module, _ in attention_of(model))
    report = SpeedUp(model, dict(modules))
    if measure is None:
        return report
    report = SpeedUp(model, dict(modules), report.measure(measure))
    print(report)  # noqa: T201 (it was asked for)
    return report


def restore(model: nn.Module) -> nn.Module:
    """Undo `speed_up`, or `attn_implementation="everyformer"`: the model as it was.

    Raises:
        InputError: If the model does not run on our operator.
    """
    if not is_on(model):
        why = "does not run on everyformer's operator. There is nothing to undo."
        if has_gains(model):
            why = (
                "has gains (add_urpe), of which the attention of transformers knows "
                "nothing. Load the model anew to have it without them."
            )
        raise InputError(f"{type(model).__name__} {why}")
    switch_off(model)
    vars(model).pop("everyformer_registered", None)
    return model
