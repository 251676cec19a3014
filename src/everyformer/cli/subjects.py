"""What the user wants checked, as a module: a layer of the library, or their own."""

import inspect
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from everyformer.cli.loading import import_file
from everyformer.cli.names import ALIASES, check_layer, check_module_name
from everyformer.errors import InputError
from everyformer.layers.by_name import attention_by_name
from everyformer.layers.positions import SpecialToken
from everyformer.targets.failures import described

SIZES = {
    "d": ("d", "dim", "d_model", "embed_dim", "hidden_size", "width", "channels"),
    "n": ("n", "seq_len", "max_len", "length", "max_length", "sequence_length"),
    "heads": ("heads", "num_heads", "n_heads", "nhead", "n_head", "h"),
}
"""Names of arguments by which a class may ask for the sizes."""


@dataclass(frozen=True)
class Variant:
    """How a layer of the library is made.

    Attributes:
        causal: With a causal mask.
        bias: With biases.
        special_token: With a learnable token before the others.
    """

    causal: bool = False
    bias: bool = True
    special_token: bool = False


def layer_of_the_library(
    name: str, n: int, d: int, heads: int, variant: Variant
) -> nn.Module:
    """The layer of a name.

    Raises:
        InputError: If there is no such layer, or it cannot be made.
    """
    check_layer(name)
    base, plus, gain = name.partition("+")
    base = ALIASES.get(base, base)
    module = attention_by_name(
        f"{base}{plus}{gain}",
        seq_len=n + variant.special_token,
        embed_dim=d,
        num_heads=heads,
        causal=variant.causal,
        bias=variant.bias,
    )
    return SpecialToken(module, d) if variant.special_token else module


def module_of_the_users(name: str, n: int, d: int, heads: int) -> nn.Module:
    """The module that `file.py:attribute` means.

    Raises:
        InputError: If there is no such module, or it cannot be made.
        FileNotFoundError: If there is no such file.
    """
    check_module_name(name)
    file, _, attribute = name.rpartition(":")
    with redirect_stdout(sys.stderr):
        found = _attribute(Path(file), attribute)
        return _as_module(found, f"{file}:{attribute}", {"n": n, "d": d, "heads": heads})


def _attribute(path: Path, attribute: str) -> Any:
    module = import_file(path)
    if not hasattr(module, attribute):
        known = [
            key
            for key, value in vars(module).items()
            if isinstance(value, nn.Module)
            or (inspect.isclass(value) and issubclass(value, nn.Module))
        ]
        hint = f"Its modules: {', '.join(known)}" if known else "It has no nn.Module"
        raise InputError(f"{path} has no attribute {attribute!r}. {hint}.")
    return getattr(module, attribute)


def _as_module(value: Any, name: str, sizes: dict[str, int]) -> nn.Module:
    """A module, or what a class or function makes of the sizes it asks for."""
    if not isinstance(value, nn.Module) and callable(value):
        arguments = _arguments(value, name, sizes)
        try:
            value = value(**arguments)
        except (Exception, SystemExit) as error:
            given = ", ".join(f"{key}={size}" for key, size in arguments.items())
            msg = f"{name}({given}) failed: {described(error)}. Repair it, or give others"
            raise InputError(f"{msg} sizes (--seq-len, --d-model, --heads).") from error
    if not isinstance(value, nn.Module):
        msg = f"{name} is of type {type(value).__name__}, not a torch.nn.Module"
        raise InputError(f"{msg}, nor a class or function that makes one.")
    return value


def _arguments(maker: Any, name: str, sizes: dict[str, int]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    missing: list[str] = []
    for key, parameter in inspect.signature(maker).parameters.items():
        size = next((size for size, names in SIZES.items() if key in names), None)
        required = parameter.default is inspect.Parameter.empty
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if size is not None and not variable:
            chosen[key] = sizes[size]
        elif required and not variable:
            missing.append(key)
    if missing:
        known = ", ".join(name for names in SIZES.values() for name in names[:4])
        msg = (
            f"{name} needs {', '.join(missing)}, and only sizes are given to it (by names "
            f"such as {known}). Give an instance, or a function without arguments."
        )
        raise InputError(msg)
    return chosen
