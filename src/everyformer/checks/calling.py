"""How a module is fed tokens, and where its output is."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.masked import MaskedTensor

from everyformer.errors import InputError

Layout = Literal["batch_first", "tokens_first"]
"""Whether a module takes (batch, n, d) or (n, batch, d)."""


def call(
    module: nn.Module, x: torch.Tensor, layout: Layout = "batch_first"
) -> torch.Tensor:
    """Feed tokens to a module the way its forward asks for, and take its first tensor.

    Understood: forward(x, ..), forward(query, key, value), and models with inputs_embeds,
    which get the tokens in place of their embeddings. An output may be a tensor, a tuple
    or a list that begins with one, or a mapping or an object that has one under
    `last_hidden_state` or `logits`.

    Args:
        module: The module.
        x: Tokens, (batch, n, d).
        layout: How the module wants them, and gives its own.

    Returns:
        Its output, turned to (batch, n, d).

    Raises:
        InputError: If the result holds no dense tensor.
    """
    found = output_of(fed(module, x, layout))
    if not isinstance(found, torch.Tensor):
        msg = f"the forward of {type(module).__name__} returned {type(found).__name__}"
        raise InputError(
            f"{msg}, not a tensor, nor a tuple that begins with one, nor anything with "
            "last_hidden_state or logits. Wrap it in a module that returns one."
        )
    kind = _unlike_an_array(found)
    if kind:
        msg = f"the forward of {type(module).__name__} returned a {kind} tensor"
        raise InputError(f"{msg}. Wrap it in a module that returns a dense one.")
    if layout == "tokens_first" and found.ndim >= 2:
        found = found.transpose(0, 1)
    return found.double()


def _unlike_an_array(x: torch.Tensor) -> str:
    """The kind of a tensor that does not hold one number for each entry; "" if it does."""
    if x.is_nested or isinstance(x, MaskedTensor):
        return "nested" if x.is_nested else "masked"
    return "" if x.layout == torch.strided else str(x.layout).removeprefix("torch.")


def fed(module: nn.Module, x: torch.Tensor, layout: Layout) -> Any:
    """What a module returns for tokens (batch, n, d), as it returns it.

    Raises:
        InputError: If the module ends the program.
    """
    names = list(inspect.signature(module.forward).parameters)
    turned = x.transpose(0, 1) if layout == "tokens_first" else x
    try:
        if names[:3] == ["query", "key", "value"]:
            return module(turned, turned, turned)
        if "inputs_embeds" in names and names[0] in ("input_ids", "inputs_embeds"):
            return module(inputs_embeds=turned)
        return module(turned)
    except SystemExit as error:
        msg = f"the forward of {type(module).__name__} ends the program"
        raise InputError(f"{msg}. Take that out.") from error


def output_of(found: Any) -> Any:
    """The tensor among what a module returned: tokens, else logits, else what is first."""
    for name in ("last_hidden_state", "logits"):
        held = _under(found, name)
        if held is not None:
            return held
    return found[0] if isinstance(found, (tuple, list)) and found else found


def are_logits(found: Any) -> bool:
    """Whether a module returned logits, whose width is the number of words."""
    return (
        _under(found, "last_hidden_state") is None and _under(found, "logits") is not None
    )


def _under(found: Any, name: str) -> Any:
    if isinstance(found, Mapping):
        return found.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(found, name, None)


class _Replaced:
    """A hook that puts a tensor in the place of an output, and notes whose."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x
        self.shapes: list[torch.Size] = []

    def __call__(self, _: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        self.shapes.append(out.shape)
        return self.x


class InPlaceOfEmbedding(nn.Module):
    """A model of token ids as a map of what its embedding gives.

    The tokens x take the place of the embedding's output; all ids are 0. What a model does
    with ids beside that, such as a mask of those that are padding, it does with zeros.
    """

    def __init__(self, module: nn.Module, embedding: str) -> None:
        """Find the embedding.

        Args:
            module: Called as module(ids), ids of shape (batch, n).
            embedding: The name of its part that embeds ids, such as "transformer.wte".

        Raises:
            InputError: If it has no such part.
        """
        super().__init__()
        parts = dict(module.named_modules())
        if embedding not in parts:
            tables = [name for name, one in parts.items() if isinstance(one, nn.Embedding)]
            msg = f"{type(module).__name__} has no part {embedding!r}"
            raise InputError(f"{msg}. Its embeddings: {', '.join(tables) or 'none'}.")
        self.module, self.embedding = module, embedding

    def forward(self, x: torch.Tensor) -> Any:
        """The output for tokens (batch, n, d), as the model returns it."""
        ids = torch.zeros(x.shape[:2], dtype=torch.int64)
        part = self.module.get_submodule(self.embedding)
        replaced = _Replaced(x)
        handle = part.register_forward_hook(replaced)
        try:
            found = self.module(ids)
        finally:
            handle.remove()
        if replaced.shapes != [x.shape]:
            told = ", ".join(str(tuple(shape)) for shape in replaced.shapes) or "nothing"
            msg = f"{self.embedding} was to give {tuple(x.shape)} once, and gave {told}"
            raise InputError(f"{msg}. Name the part that embeds the token ids.")
        return found
