"""Whether a module does, when it is run, what it did when it was exported.

An export sees one run on tensors without numbers. A module can ask whether it is exported,
or catch the error of an export that it stops, and then do something else with numbers. So
it is run once more with numbers: it may not read any off a tensor that depends on its input
or its weights (what it does could depend on them), and must call the operations that were
exported.
Python's profiler sees the calls of functions in C that torch's own hooks do not see.
"""

import types
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C import (
    _is_torch_function_all_disabled,  # pyright: ignore[reportPrivateUsage]
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everyformer.checks.following.calls import Calls

READING = frozenset(
    ["item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__",
     "__complex__", "__array__", "__contains__", "data_ptr", "untyped_storage", "storage",
     "__dlpack__", "equal", "allclose", "is_nonzero", "_local_scalar_dense", "__repr__",
     "__str__", "__format__", "__reduce_ex__"]
)  # fmt: skip
"""Methods and functions that make of a tensor something that Python can decide by."""

UNSEEN = frozenset(
    ["_to_dlpack", "_to_dlpack_versioned", "start_new_thread", "start_joinable_thread"]
)
"""Functions in C by which numbers go where hooks of torch do not see them."""

SILENT = frozenset(
    ["alias", "detach", "detach_", "clone", "lift_fresh", "lift_fresh_copy", "_to_copy",
     "view", "_unsafe_view", "reshape", "expand", "t", "transpose", "permute", "unsqueeze",
     "squeeze", "contiguous", "_assert_tensor_metadata", "_assert_async", "empty",
     "empty_like", "arange", "scalar_tensor", "ones", "zeros", "full", "slice", "select"]
)  # fmt: skip
"""Operations that change no numbers, or make some of nothing."""


class _Reading(TorchFunctionMode):
    """Notes what is read off tensors that are made of an input or of weights."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.made = {id(one): one for one in given}  # kept alive: their ids stay their own
        self.read = ""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        held = [y for y in tree_leaves((args, kwargs)) if isinstance(y, torch.Tensor)]
        made = any(id(y) in self.made for y in held)
        name = getattr(func, "__name__", "")
        if made and name in READING:
            self.read = self.read or name
        found = func(*args, **kwargs)
        if made:
            self.made |= {
                id(y): y for y in tree_leaves(found) if isinstance(y, torch.Tensor)
            }
        return found


class _Hidden(Calls):
    """Notes calls of functions in C that hide what is read.

    Attributes:
        read: The first of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read = ""

    def note(self, frame: types.FrameType, event: str, function: Any) -> None:
        """Note a call."""
        if event != "c_call":
            return
        name = getattr(function, "__name__", "")
        hidden = name in READING and _is_torch_function_all_disabled()
        if name in UNSEEN or hidden:
            self.read = self.read or name


class _Operations(TorchDispatchMode):
    """Counts operations that change numbers.

    Reading a number counts where it is made of an input or of weights: another, such as
    that of `masked_fill` with a number in a tensor, is always the same.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.made = {id(one): one for one in given}
        self.called = Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = func.__name__.split(".")[0].rstrip("_"), kwargs or {}
        held = [y for y in tree_leaves((args, kwargs)) if isinstance(y, torch.Tensor)]
        made = any(id(y) in self.made for y in held)
        if name not in SILENT and (made or name != "_local_scalar_dense"):
            self.called[name] += 1
        found = func(*args, **kwargs)
        if made:
            self.made |= {
                id(y): y for y in tree_leaves(found) if isinstance(y, torch.Tensor)
            }
        return found


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


def dishonesty(module: nn.Module, exported: Map, x: torch.Tensor) -> str:
    """Why an export is not to be believed; "" if nothing speaks against it.

    Args:
        module: What was exported.
        exported: What came of it.
        x: An input.
    """
    with _without_fast_paths(), torch.no_grad():
        given, weights = x.clone(), list(module.parameters())
        calls = _Hidden()
        with calls, _Reading([given, *weights]) as reading:
            module(given)
        read = reading.read or calls.read or "sys.setprofile" * calls.taken
        if read:
            return f"it reads numbers off its input or weights ({read}), and may go by them"
        counts: list[Counter[str]] = []
        for run in (module, exported):
            given = x.clone()
            with _Operations([given, *weights]) as operations:
                run(given)
            counts.append(operations.called)
    more = counts[0] - counts[1]
    if more:
        return f"it calls {min(more)}, which was not exported"
    return ""
