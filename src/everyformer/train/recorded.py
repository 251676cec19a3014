"""A function as CUDA graphs: a GPU replays its kernels without waiting for Python."""

from collections.abc import Callable, Hashable
from contextlib import nullcontext, suppress
from functools import partial
from threading import RLock
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.cuda import memory
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from everyformer.errors import InputError
from everyformer.ops.captured import as_if_captured, is_captured, is_on_gpu
from everyformer.train.surroundings import (
    Places,
    Surroundings,
    check_replaced,
    steps,
    without_rounded_weights,
)

WARM_UP = 3
"""Calls before the one that is recorded: they compile, choose kernels, and make memory."""

R = TypeVar("R")

allocator: Any = memory  # what `torch.cuda.use_mem_pool` does with it has no public name


class Recorded(Generic[R]):
    """A function that launches its kernels as one graph for each shape of its arguments.

    The first calls with a shape run as they are, the last of them in the way of a capture,
    which transformers and this library know; then the function is recorded, and from
    then on replayed. So it must do the same each time: read no number from the GPU, and
    keep all that changes between two calls in tensors that it finds again at the same
    place: `mean.lerp_(x, 0.1)`, where `mean = mean.lerp(x, 0.1)` makes a new one, and each
    replay would begin with the old one. Numbers of Python that it reads or gives are those
    of when it was recorded. Dtypes, arguments that are no tensors, autocast, whether its
    modules train, its weights get gradients and these are recorded, belong to the shape.
    Each shape keeps its graph as long as this object is there: pad batches to a few
    lengths.
    Random numbers follow `torch.manual_seed`: a graph reads seed and offset when it begins.

    Weights, buffers and the state of its optimisers may be replaced between two calls, by
    `load_state_dict` or `to`: the function is recorded anew. For that its modules are found
    by the names that it uses (`everyformer.train.surroundings`), about 1 us for each
    of their parts in a call. Gradients that it leaves without a step are in `.grad`.

    All graphs share one pool of memory: what one leaves there no other reads, and they
    never run at the same time; threads wait for each other. Without a tensor on a GPU among
    its arguments, and within the graph of another, the function runs as it is.

    Args:
        function: Gives tensors, from tensors on one GPU and whatever can be hashed, in any
            nesting of lists, tuples and dicts; called on a stream of its own.
        capture_error_mode: What `torch.cuda.graph` does about calls that a graph does not
            hold. "relaxed" lets kernels be loaded while it is recorded.

    Raises:
        InputError: At a call with a tensor that requires a gradient, which no replay gives
            it, that is on another device, or that the function writes into; with something
            else that holds tensors or cannot be hashed; where parameters or buffers are
            replaced within the function; if a number of an optimiser that makes a step,
            such as its rate, or the place of gradients that are added to, is another one
            than when it was recorded; and before a result is replayed whose tensors cannot
            be copied.

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
        self._device: torch.device | None = None
        self._calls: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Graph[R]] = {}
        self._twice: set[Hashable] = set()
        self._alone = RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins anew: graphs know the addresses of this one."""
        again = partial(Recorded, capture_error_mode=self._mode)
        return again, (self._function,)

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
        if device is None or any(map(is_captured, tensors)):
            return _detached(self._function(*given, **named))
        self._device = self._device or device
        _refuse_other_devices(tensors, self._device)
        around = Surroundings(self._function)
        shape = (kind, *map(_shape, leaves), around.modes(device.type))
        here = torch.cuda.current_stream(device)
        with self._alone:
            if self._stream is None:
                self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(here)
            try:
                with torch.cuda.stream(self._stream), without_rounded_weights(device.type):
                    return self._found(shape, leaves, kind, around)
            finally:
                here.wait_stream(self._stream)

    def _found(
        self, shape: Hashable, leaves: list[Any], kind: Any, around: Surroundings
    ) -> R:
        """By Python at first, then by the graph of a shape."""
        if shape in self._graphs and not self._is_valid(shape, around):
            del self._graphs[shape], self._calls[shape]
        calls = self._calls.get(shape, 0)
        if calls < WARM_UP:
            found = self._as_it_is(leaves, kind, around if calls == WARM_UP - 1 else None)
        elif shape in self._graphs:
            found = self._graphs[shape].replayed(leaves)
        else:
            self._graphs[shape] = self._recorded(leaves, kind, around)
            found = self._graphs[shape].launched(leaves)
        self._calls[shape] = calls + 1
        return found

    def _is_valid(self, shape: Hashable, around: Surroundings) -> bool:
        """Whether a graph finds what it was recorded with."""
        places = self._graphs[shape].places
        if not places.are_those_of(around):
            return False
        other = places.other_gradients()
        if other and shape in self._twice:
            raise InputError(other)
        if other:  # by chance at first: they may have been cleared before it was recorded
            self._twice.add(shape)
        return not other

    def _as_it_is(self, leaves: list[Any], kind: Any, around: Surroundings | None) -> R:
        """A call by Python; the last one is looked at, if it is given what is around it.

        That goes all ways of the one that will be recorded: nothing compiles in a capture.
        """
        given, named = tree_unflatten(leaves, kind)
        tensors = [x for x in leaves if isinstance(x, Tensor) and not x.is_inference()]
        versions = [x._version for x in tensors]
        places = around and around.of_modules()
        with as_if_captured() if around else nullcontext():
            found = _copied(_detached(self._function(*given, **named)))
        _refuse_written(
            [x for x, v in zip(tensors, versions, strict=True) if x._version != v]
        )
        if places is not None:
            check_replaced(places, Surroundings(self._function).of_modules())
        return found

    def _recorded(self, leaves: list[Any], kind: Any, around: Surroundings) -> "_Graph[R]":
        first = next(iter(self._graphs.values()), None)
        pool = torch.cuda.graph_pool_handle() if first is None else first.graph.pool()
        inputs = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        given, named = tree_unflatten(inputs, kind)
        graph, gradients = torch.cuda.CUDAGraph(), around.gradients()
        why: BaseException | None = None
        try:
            with (
                steps() as stepped,
                as_if_captured(),  # as in the call before, for what was compiled then
                torch.cuda.graph(
                    graph, pool=pool, stream=self._stream, capture_error_mode=self._mode
                ),
            ):
                try:
                    found = _detached(self._function(*given, **named))
                except BaseException as error:
                    why = error
                    raise
        except BaseException as error:
            self._give_back(graph, pool, leaves)
            if why is not None and why is not error:  # the end of what CUDA has broken off
                raise why from why.__cause__
            raise
        after = Surroundings(self._function)
        return _Graph(graph, inputs, found, Places(around, gradients, after, stepped))

    def _give_back(self, graph: Any, pool: Any, leaves: list[Any]) -> None:
        """The memory of a recording that CUDA has broken off, and random numbers.

        torch then never ends what it began: its allocator would keep the pool for good, and
        its generator would count numbers for the graph. The next graph that ends ends that.
        """
        try:
            graph.pool()
        except RuntimeError:
            place = next(x.device for x in leaves if isinstance(x, Tensor) and x.is_cuda)
            with suppress(RuntimeError):  # of a release of torch that has ended it itself
                allocator._cuda_endAllocateToPool(place.index, pool)
                allocator._cuda_releasePool(place.index, pool)
            with suppress(RuntimeError):
                other, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(place)
                mode = self._mode
                with torch.cuda.graph(other, stream=stream, capture_error_mode=mode):
                    torch.zeros(1, device=place)


class _Graph(Generic[R]):
    """The CUDA graph of one shape, the tensors that it reads, and what it writes."""

    def __init__(self, graph: Any, inputs: list[Any], found: R, places: Places) -> None:
        self.graph, self.places = graph, places
        self._inputs, self._found = inputs, found
        _refuse_other_results(found)

    def replayed(self, leaves: list[Any]) -> R:
        """What the function gives for arguments of this shape."""
        found = self.launched(leaves)
        self.places.leave_gradients()
        return found

    def launched(self, leaves: list[Any]) -> R:
        """The same where all is as the function left it when it was recorded."""
        for own, given in zip(self._inputs, leaves, strict=True):
            if isinstance(own, Tensor):
                own.copy_(given)
        self.graph.replay()
        return _copied(self._found)


def _detached(found: R) -> R:
    """Tensors without autograd's graph, as a replay leaves them."""
    return tree_map_only(Tensor, Tensor.detach, found)


def _copied(found: R) -> R:
    """Tensors that no later call changes."""
    return tree_map_only(Tensor, Tensor.clone, found)


def _shape(x: Any) -> Hashable:
    """What a graph depends on: all of a tensor but its numbers."""
    if isinstance(x, Tensor):
        return tuple(x.shape), x.dtype, x.device
    if isinstance(x, float):
        return float, x.hex()  # 0.0 is not -0.0, and NaN is itself
    _refuse_other_arguments(x)
    return type(x), x


def _refuse_other_arguments(x: object) -> None:
    why = "whose tensors no replay would be given" if _holds_tensors(x) else ""
    try:
        hash(x)
    except TypeError:
        why = why or "which cannot be hashed, so that no graph is found by it"
    if why:
        msg = (
            f"An argument is a {type(x).__name__}, {why}. Give tensors, in lists, tuples "
            "or dicts, and numbers or texts."
        )
        raise InputError(msg)


def _holds_tensors(x: object, deep: int = 3) -> bool:
    """Whether a replay would miss what lies in an object, such as a cache of keys."""
    if isinstance(x, Tensor):
        return True
    if not deep or isinstance(x, nn.Module | type | FunctionType):
        return False
    held = tree_leaves(
        [x, getattr(x, "__dict__", {}), [getattr(x, name, None) for name in _slots(x)]]
    )
    return any(_holds_tensors(one, deep - 1) for one in held if one is not x)


def _slots(x: object) -> tuple[str, ...]:
    named = getattr(type(x), "__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named)


def _refuse_other_devices(tensors: list[Tensor], device: torch.device) -> None:
    for x in tensors:
        if x.device != device:
            msg = (
                f"An argument of shape {tuple(x.shape)} is on {x.device} and the graphs "
                f"are on {device}: a replay would go on with the numbers that it had when "
                f"it was recorded. Move all tensors to {device}."
            )
            raise InputError(msg)


def _refuse_written(tensors: list[Tensor]) -> None:
    for x in tensors:
        msg = (
            f"The function writes into its argument of shape {tuple(x.shape)}, but a "
            "replay works on a copy: who gave it would see no change. Return what "
            "changes, or let the function find the tensor by itself."
        )
        raise InputError(msg)


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
