"""A function as CUDA graphs: a GPU replays its kernels without waiting for Python."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from everyformer.errors import InputError
from everyformer.ops.captured import is_on_gpu

WARM_UP = 3
"""Calls before the one that is recorded: they compile, choose kernels, and make memory."""

R = TypeVar("R")


class Recorded(Generic[R]):
    """A function that launches its kernels as one graph for each shape of its arguments.

    The first calls with a shape run as they are; then the function is recorded, and from
    then on replayed. So it must do the same each time: read no number from the GPU, and
    keep all that changes between two calls in tensors that it finds again at the same
    place. Dtypes, and arguments that are no tensors, belong to the shape.
    Random numbers follow `torch.manual_seed`: a graph reads seed and offset when it begins.

    All graphs share one pool of memory: what one leaves there, gradients included, no other
    reads, and they never run at the same time. Without a tensor on a GPU among its
    arguments the function always runs as it is.

    Args:
        function: Gives tensors, from tensors on one GPU and whatever can be hashed, in any
            nesting of lists, tuples and dicts; called on a stream of its own.
        capture_error_mode: What `torch.cuda.graph` does about calls that a graph does not
            hold. "relaxed" lets kernels be loaded while it is recorded.

    Raises:
        InputError: At a call with a tensor that requires a gradient, which no replay gives
            it, and before a result is replayed whose tensors cannot be copied.

    Example:
        >>> import torch
        >>> weight = torch.ones((), requires_grad=True)
        >>> optimiser = torch.optim.SGD([weight], lr=0.5)
        >>> def update(x):
        ...     optimiser.zero_grad()
        ...     loss = (weight * x).sum()
        ...     loss.backward()
        ...     optimiser.step()
        ...     return loss.detach()
        >>> step = Recorded(update)  # on a GPU the fourth call records
        >>> [float(step(torch.ones(2))) for _ in range(3)]
        [2.0, 0.0, -2.0]
    """

    def __init__(
        self, function: Callable[..., R], *, capture_error_mode: str = "global"
    ) -> None:
        self._function = function
        self._mode = capture_error_mode
        self._stream: torch.cuda.Stream | None = None
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Graph[R]] = {}

    @property
    def graphs(self) -> int:
        """How many shapes have been recorded."""
        return len(self._graphs)

    def __call__(self, *given: Any, **named: Any) -> R:
        """What the function gives, detached."""
        leaves, kind = tree_flatten((given, named))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        _refuse_gradients(tensors)
        device = next((x.device for x in tensors if is_on_gpu(x)), None)
        if device is None:
            return _detached(self._function(*given, **named))
        shape = (kind, *map(_shape, leaves))
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        here = torch.cuda.current_stream(device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            if self._calls.get(shape, 0) < WARM_UP:
                found = _detached(self._function(*given, **named))
            else:
                found = self._graph(shape, leaves, kind).replayed(leaves)
        here.wait_stream(self._stream)
        self._calls[shape] = self._calls.get(shape, 0) + 1
        return found

    def _graph(self, shape: Hashable, leaves: list[Any], kind: Any) -> "_Graph[R]":
        if shape not in self._graphs:
            first = next(iter(self._graphs.values()), None)
            pool = None if first is None else first.graph.pool()
            places = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
            given, named = tree_unflatten(places, kind)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode=self._mode
            ):
                found = _detached(self._function(*given, **named))
            self._graphs[shape] = _Graph(graph, places, found)
        return self._graphs[shape]


class _Graph(Generic[R]):
    """The CUDA graph of one shape, the tensors that it reads, and what it writes."""

    def __init__(self, graph: Any, places: list[Any], found: R) -> None:
        self.graph, self._places, self._found = graph, places, found
        _refuse_other_results(found)

    def replayed(self, leaves: list[Any]) -> R:
        """What the function gives for arguments of this shape."""
        for place, given in zip(self._places, leaves, strict=True):
            if isinstance(place, Tensor):
                place.copy_(given)
        self.graph.replay()
        return tree_map_only(Tensor, Tensor.clone, self._found)


def _detached(found: R) -> R:
    """Tensors without autograd's graph, as a replay leaves them."""
    return tree_map_only(Tensor, Tensor.detach, found)


def _shape(x: Any) -> Hashable:
    """What a graph depends on: all of a tensor but its numbers."""
    if isinstance(x, Tensor):
        return tuple(x.shape), x.dtype, x.device
    return type(x), x


def _refuse_gradients(tensors: list[Tensor]) -> None:
    for x in tensors:
        if x.requires_grad:
            msg = (
                f"An argument of shape {tuple(x.shape)} requires a gradient, but a replay "
                "leaves nothing for autograd: its gradient would be lost. Give it "
                "detached; parameters belong to the function, not to its arguments."
            )
            raise InputError(msg)


def _refuse_other_results(found: object) -> None:
    for x in tree_leaves(found):
        if not isinstance(x, Tensor | int | float | str | None):
            msg = (
                f"The function gives a {type(x).__name__}, whose tensors the next replay "
                "would overwrite. Return tensors, in lists, tuples or dicts."
            )
            raise InputError(msg)
