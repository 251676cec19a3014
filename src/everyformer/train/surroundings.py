"""What a function works on besides its arguments, of which a CUDA graph knows addresses.

Modules and tensors are found by the names that the function uses: variables around it,
what a method belongs to, what `functools.partial` gives it, and the same of the functions
that it names in its file. What is hidden deeper, or in long lists, is not seen.
"""

from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import contextmanager
from functools import partial
from inspect import unwrap
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from everyformer.errors import InputError

LONGEST = 1000
"""Of lists that are looked through in each call; longer ones are data."""

Gradients = dict[nn.Parameter, tuple[Tensor, int]]


class Surroundings:
    """Modules, and tensors of no module, that a function finds now.

    Attributes:
        modules: With their parts.
        tensors: By the names that they have in the function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Of a function that is about to be called."""
        self.modules: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._seen: set[int] = set()
        self._add("", function)

    def modes(self, device: str) -> Hashable:
        """What decides, without any argument, which operations run."""
        rounded = torch.is_autocast_enabled(device)
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_autocast_dtype(device) if rounded else None,
            tuple([module.training for module in self.modules]),
            tuple([weight.requires_grad for weight in self._weights()]),
        )

    def of_modules(self) -> list[int]:
        """Where parameters and buffers lie."""
        own = [(*x._parameters.values(), *x._buffers.values()) for x in self.modules]
        return _addresses(tensor for several in own for tensor in several)

    def of_tensors(self) -> dict[str, int]:
        """Where the other tensors lie."""
        return dict(zip(self.tensors, _addresses(self.tensors.values()), strict=True))

    def gradients(self) -> "Gradients":
        """Of all parameters that have one, and how often each was changed."""
        grads = {weight: weight.grad for weight in self._weights()}
        return {x: (g, _version(g)) for x, g in grads.items() if g is not None}

    def _weights(self) -> list[nn.Parameter]:
        every = [x for module in self.modules for x in module._parameters.values()]
        return [x for x in every if x is not None]

    def _add(self, name: str, found: Any, depth: int = 0) -> None:
        if isinstance(found, Tensor):
            self.tensors[name] = found
            return
        if isinstance(found, _PLAIN) or id(found) in self._seen:
            return
        self._seen.add(id(found))
        if isinstance(found, nn.Module):
            module: Any = found
            self.modules.append(module)
            for part in module._modules.values():
                self._add(name, part)
        elif isinstance(found, FunctionType):
            inner = unwrap(found)
            for key, value in _named_in(inner):
                self._add(key, value, depth)
        elif isinstance(found, MethodType):
            self._add(name, found.__func__, depth)
            self._add(name, found.__self__, depth)
        elif isinstance(found, partial):
            self._add(name, (found.func, found.args, found.keywords), depth)
        elif isinstance(found, list | tuple | dict) and len(found) > LONGEST:
            return
        elif isinstance(found, list | tuple):
            for place, value in enumerate(found):
                self._add(f"{name}[{place}]", value, depth)
        elif isinstance(found, dict):
            for key, value in found.items():
                self._add(f"{name}[{key!r}]", value, depth)
        elif depth == 0 and not isinstance(found, Optimizer | type):
            for key, value in getattr(found, "__dict__", {}).items():
                self._add(f"{name}.{key}", value, 1)


_PLAIN = str | int | float | complex | bytes | CodeType | None
"""What holds no tensors."""


def _named_in(function: FunctionType) -> Generator[tuple[str, Any]]:
    """Variables around a function, and those of its file that it names."""
    code, file = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in code.co_names:
        value = file.get(name)
        foreign = isinstance(value, FunctionType) and value.__globals__ is not file
        if isinstance(value, nn.Module | Tensor | partial | FunctionType) and not foreign:
            yield name, value


def _addresses(tensors: Iterable[Tensor | None]) -> list[int]:
    """0 for none, and a tensor's number in Python where a class hides its address."""
    return [
        0 if x is None else x.data_ptr() if type(x) in _OPEN else id(x) for x in tensors
    ]


_OPEN = {Tensor, nn.Parameter, nn.Buffer}


@contextmanager
def steps() -> Generator[list[Optimizer]]:
    """The optimisers that make a step meanwhile."""
    found: list[Optimizer] = []

    def note(optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(optimiser is x for x in found):
            found.append(optimiser)

    handle = register_optimizer_step_post_hook(note)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def without_rounded_weights(device: str) -> Generator[None]:
    """Under autocast from outside, which keeps rounded weights until it is left.

    A graph would read them when they are gone, or are those of earlier weights.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(before and not torch.is_autocast_enabled(device))
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class Places:
    """Where a graph finds what its function worked on when it was recorded."""

    def __init__(
        self,
        before: Surroundings,
        gradients: Gradients,
        after: Surroundings,
        stepped: list[Optimizer],
    ) -> None:
        """From what was there before it was recorded, and afterwards."""
        self._modules = after.of_modules()
        earlier, later = before.of_tensors(), after.of_tensors()
        self._tensors = {
            name: place for name, place in later.items() if earlier.get(name) == place
        }
        self._stepped = stepped
        self._states = [_of_optimiser(x) for x in stepped]
        self._numbers = [_numbers_of(x) for x in stepped]
        own = {x for optimiser in stepped for x in _parameters_of(optimiser)}
        now = after.gradients()
        made = {
            x: grad
            for x, (grad, _) in now.items()
            if x not in gradients or grad is not gradients[x][0]
        }
        self._fresh = [x for x in made if x not in gradients]
        self._left = {x: grad for x, grad in made.items() if x not in own}
        self._added = {
            x: grad
            for x, (grad, version) in now.items()
            if x not in made and version != gradients[x][1]
        }

    def are_those_of(self, now: Surroundings) -> bool:
        """Whether all is where it was.

        Raises:
            InputError: If a setting of an optimiser is another number than the graph's.
        """
        tensors = now.of_tensors()
        there = (
            now.of_modules() == self._modules
            and all(tensors.get(name) == x for name, x in self._tensors.items())
            and [_of_optimiser(x) for x in self._stepped] == self._states
        )
        if there:
            for optimiser, numbers in zip(self._stepped, self._numbers, strict=True):
                _refuse_other_numbers(optimiser, numbers)
        return there

    def other_gradients(self) -> str:
        """Why gradients that are added to are not those of before; "" if they are."""
        given = [x for x in self._fresh if x.grad is not None]
        given += [x for x, grad in self._added.items() if x.grad is not grad]
        if not given:
            return ""
        was = "none" if given[0] in self._fresh else "another tensor"
        return (
            f"The function adds to the gradient of a parameter of shape "
            f"{tuple(given[0].shape)}, which was {was} when it was recorded; a graph adds "
            "to what was there then. Call zero_grad within the function, or between all "
            "calls with set_to_none=False."
        )

    def leave_gradients(self) -> None:
        """Those that the function leaves for others, where Python would find them."""
        for parameter, grad in self._left.items():
            parameter.grad = grad


def check_replaced(before: list[int], after: list[int]) -> None:
    """Raise `InputError` if parameters or buffers were replaced by a call."""
    if before != after:
        msg = (
            "The function puts new tensors in the places of parameters or buffers, but a "
            "replay reads those that it was recorded with, each time the same. Change "
            "them in place, with copy_."
        )
        raise InputError(msg)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def _parameters_of(optimiser: Optimizer) -> list[nn.Parameter]:
    return [x for group in optimiser.param_groups for x in group["params"]]


def _of_optimiser(optimiser: Optimizer) -> list[int]:
    """Where its parameters, its state and its settings lie."""
    states = optimiser.state.values()
    several = [x for state in states for x in state.values() if isinstance(x, Tensor)]
    settings = [
        group[key]
        for group in optimiser.param_groups
        for key in optimiser.defaults
        if isinstance(group.get(key), Tensor)
    ]
    return _addresses([*_parameters_of(optimiser), *several, *settings])


def _numbers_of(optimiser: Optimizer) -> list[dict[str, Any]]:
    """Settings of its groups that are no tensors."""
    return [
        {key: group.get(key) for key in optimiser.defaults if _is_number(group.get(key))}
        for group in optimiser.param_groups
    ]


def _is_number(x: Any) -> bool:
    several = x if isinstance(x, list | tuple) else [x]
    return not any(isinstance(one, Tensor) for one in several)


def _refuse_other_numbers(optimiser: Optimizer, numbers: list[dict[str, Any]]) -> None:
    for now, before in zip(_numbers_of(optimiser), numbers, strict=False):
        for key, number in before.items():
            if now.get(key, number) != number:
                msg = (
                    f"{key} of {type(optimiser).__name__} is {now[key]}, and was {number} "
                    "when the function was recorded: a graph goes on with the number that "
                    f"it was given. Give a tensor on the GPU, {key}=torch.tensor(..), and "
                    "change it in place; schedulers do."
                )
                raise InputError(msg)
