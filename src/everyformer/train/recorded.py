"""An update as one CUDA graph: a GPU replays it without waiting for Python."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.data.batch import Draw

WARM_UP = 3
"""Calls before the one that is recorded: they compile, choose kernels, and make memory."""

Shape = tuple[tuple[int, int], ...]
Update = Callable[[Sequence[Draw]], Tensor]


class Recorded:
    """A function of draws that launches its kernels as one graph for each of their shapes.

    The first calls with a shape run as they are; then the function is recorded, and from
    then on replayed. So it must do the same each time: read no number from the GPU, and
    keep all that changes between two calls in tensors that it finds again at the same
    place.
    Random numbers follow `torch.manual_seed`: a graph reads seed and offset when it begins.

    All graphs share one pool of memory: what one leaves there, gradients included, no other
    reads, and they never run at the same time.

    Args:
        function: Gives a tensor from draws; called on a stream of its own.
    """

    def __init__(self, function: Update) -> None:
        self._function = function
        self._stream = torch.cuda.Stream()
        self._calls: dict[Shape, int] = {}
        self._graphs: dict[Shape, _Graph] = {}

    @property
    def graphs(self) -> int:
        """How many shapes have been recorded."""
        return len(self._graphs)

    def __call__(self, draws: Sequence[Draw]) -> Tensor:
        """What the function gives."""
        shape = tuple((len(draw.numbers), draw.length) for draw in draws)
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            if self._calls.get(shape, 0) < WARM_UP:
                found = self._function(draws)
            else:
                found = self._graph(shape, draws).replayed(draws)
        here.wait_stream(self._stream)
        self._calls[shape] = self._calls.get(shape, 0) + 1
        return found

    def _graph(self, shape: Shape, draws: Sequence[Draw]) -> "_Graph":
        if shape not in self._graphs:
            first = next(iter(self._graphs.values()), None)
            pool = None if first is None else first.graph.pool()
            self._graphs[shape] = _Graph(self._function, draws, self._stream, pool)
        return self._graphs[shape]


class _Graph:
    """The graph of one shape, the draws that it reads, and the tensor that it writes."""

    def __init__(
        self,
        function: Update,
        draws: Sequence[Draw],
        stream: torch.cuda.Stream,
        pool: Any,
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self._given = [Draw(draw.numbers.clone(), draw.length) for draw in draws]
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self._found = function(self._given)

    def replayed(self, draws: Sequence[Draw]) -> Tensor:
        """What the function gives for draws of this shape."""
        for place, draw in zip(self._given, draws, strict=True):
            place.numbers.copy_(draw.numbers)
        self.graph.replay()
        return self._found.clone()
