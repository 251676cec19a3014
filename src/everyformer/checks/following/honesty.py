"""Whether a module does, when it is run, what it did when it was exported.

An export sees one run on tensors without numbers. A module can ask whether it is exported,
or catch the error of an export that it stops, and then do something else with numbers. So
it is run once more with numbers: it may not read any off a tensor that depends on its input
or its weights (what it does could depend on them), and must do what was exported: the same
operations, on the same, in the same order (`names`). All of it with gradients and without.
Python's profiler sees the calls of functions in C that torch's own hooks do not see.
"""

import types
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C import (
    _is_torch_function_all_disabled,  # pyright: ignore[reportPrivateUsage]
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from everyformer.checks.following.calls import Calls
from everyformer.checks.following.names import Named, Names, memory, storage

READING = frozenset(
    ["item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__",
     "__complex__", "__array__", "__contains__", "data_ptr", "untyped_storage", "storage",
     "__dlpack__", "equal", "allclose", "is_nonzero", "_local_scalar_dense", "__repr__",
     "__str__", "__format__", "__reduce_ex__"]
)  # fmt: skip
"""Methods and functions that make of a tensor something that Python can decide by."""

UNSEEN = frozenset(
    ["_to_dlpack", "_to_dlpack_versioned", "start_new_thread", "start_joinable_thread",
     "apply_", "map_", "map2_", "redispatch", "_op_dk", "_disable_current_modes",
     "no_dispatch", "_unset_dispatch_mode", "_pop_torch_dispatch_stack"]
)  # fmt: skip
"""Functions by which numbers go where hooks of torch do not see them."""

SHARING = frozenset(
    ["numpy", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__"]
)
"""Of `READING`, those that give away memory, into which numbers may be written later."""

OF_LISTS = frozenset(["tensor", "as_tensor", "asarray", "new_tensor", "new"])
"""Functions that make a tensor of a list: of tensors in it they read the numbers."""


class _Reading(TorchFunctionMode):
    """Notes what is read off tensors that are made of an input or of weights."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.made: dict[int, torch.Tensor] = {}  # kept alive: their ids stay their own
        self.memory: dict[int, torch.UntypedStorage] = {}  # where they have their numbers
        self.read = ""
        self._note(given)

    def _note(self, made: Iterable[torch.Tensor]) -> None:
        for one in made:
            self.made[id(one)] = one
            if one.layout == torch.strided:
                self.memory[memory(one)] = storage(one)

    def _is_made(self, x: torch.Tensor) -> bool:
        return id(x) in self.made or memory(x) in self.memory

    def _of_list(self, name: str, args: Any) -> bool:
        """Whether a function reads numbers of what is made and lies in a list."""
        if name in ("__getitem__", "__setitem__"):
            index: Any = args[1]
            parts: Any = index if isinstance(index, tuple) else (index,)
        else:
            parts = args if name in OF_LISTS else ()
        held = tree_leaves([one for one in parts if isinstance(one, list | tuple)])
        return any(isinstance(one, torch.Tensor) and self._is_made(one) for one in held)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        held = [y for y in tree_leaves((args, kwargs)) if isinstance(y, torch.Tensor)]
        others = [(y, y._version) for y in held if not self._is_made(y)]  # pyright: ignore[reportPrivateUsage]
        made = len(others) < len(held)
        name = getattr(func, "__name__", "")
        by_numbers = name == "tensor_split" and len(held) > 1
        by_numbers = by_numbers or self._of_list(name, (*args, *kwargs.values()))
        if (made and (name in READING or by_numbers)) or (held and name in SHARING):
            self.read = self.read or name
        found = func(*args, **kwargs)
        if made:
            self._note(y for y in tree_leaves(found) if isinstance(y, torch.Tensor))
            self._note(y for y, before in others if y._version != before)  # pyright: ignore[reportPrivateUsage]
        return found


def _name(frame: types.FrameType | None) -> str:
    return str(frame.f_globals.get("__name__")) if frame else ""


class _Hidden(Calls):
    """Notes calls of functions, most of them in C, that hide what is read.

    Attributes:
        read: The first of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read = ""

    def note(self, frame: types.FrameType, event: str, function: Any) -> None:
        """Note a call."""
        if event == "call" and frame.f_code.co_name in UNSEEN:
            custom = _name(frame.f_back).startswith("torch._library.")  # an operation's own
            self.read = self.read or frame.f_code.co_name * (not custom)
        if event != "c_call":
            return
        name = getattr(function, "__name__", "")
        hidden = name in READING and _is_torch_function_all_disabled()
        if name in UNSEEN or hidden:
            self.read = self.read or name


@contextmanager
def _without_fast_paths() -> Generator[None]:
    """Modules of torch run fused kernels where no gradients are wanted; exports do not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


Map = Callable[[torch.Tensor], torch.Tensor]
READS = "it reads numbers off its input or weights"


def dishonesty(module: nn.Module, exported: Map, x: torch.Tensor) -> str:
    """Why an export is not to be believed; "" if nothing speaks against it.

    Args:
        module: What was exported.
        exported: What came of it.
        x: An input.
    """
    weights = list(module.parameters())
    names = Names(weights)
    with _without_fast_paths():
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                read = _read(module, x, weights)
            if read:
                return f"{READS} ({read}), and may go by them"
        for grad in (True, False):  # a tensor that a run keeps is then of no graph
            with torch.set_grad_enabled(grad):
                why = _otherwise(module, exported, x, names)
            if why:
                return why
    return ""


def _given(x: torch.Tensor) -> torch.Tensor:
    """An input, which requires gradients where they are recorded."""
    return x.clone().requires_grad_() * 1 if torch.is_grad_enabled() else x.clone()


def _read(module: nn.Module, x: torch.Tensor, weights: list[nn.Parameter]) -> str:
    """By what a run reads numbers; "" if it reads none."""
    given, calls = _given(x), _Hidden()
    with calls, _Reading([given, *weights]) as reading:
        module(given)
    return reading.read or calls.read or "sys.setprofile" * calls.taken


def _otherwise(module: nn.Module, exported: Map, x: torch.Tensor, names: Names) -> str:
    """What a module does otherwise than its export; "" if it does the same."""
    runs: list[Named] = []
    outputs: list[int] = []
    for run in (module, exported):
        given = _given(x)
        with Named(names, given) as named:
            found = run(given)
        runs.append(named)
        outputs.append(named.name(found))
    real, told = runs
    if real.read:
        return f"{READS} ({real.read}), and may go by them"
    if real.hidden:
        return real.hidden
    missing = [name for name in real.calls if name not in told.calls]
    if outputs[0] == outputs[1] and real.views.issuperset(missing):
        return ""  # what lies in a view may be asked for its shape, and is not exported
    other = [real.calls[name] for name in missing]
    new = [call for call in other if call not in told.calls.values()]
    if new:
        return f"it calls {new[0]}, which was not exported"
    return f"it calls {(other or ['operations'])[0]} otherwise than it was exported"
