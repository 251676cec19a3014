"""CUDA graphs on a CPU: what ran while one was recorded runs again on the same memory."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any, Self
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everyformer.ops import captured
from everyformer.train import recorded

aten = torch.ops.aten
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.unique_dim.default}
"""What waits for a number, or for a shape, that a GPU has not computed yet."""


class Graph(TorchDispatchMode):
    """In the place of `torch.cuda.CUDAGraph`, and of the context that records it."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, Any, Any, Any]] = []
        self.lists: dict[int, Tensor] = {}
        self.records = False
        self.replays = 0

    def __enter__(self) -> Self:
        self.records = True
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.records = False
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS:
            msg = "operation not permitted when stream is capturing"
            raise RuntimeError(msg)
        if func in INDEXES and any(id(x) in self.lists for x in args[1]):
            msg = "a list of places goes from the CPU to the GPU when stream is capturing"
            raise RuntimeError(msg)
        if func._schema.is_mutable:  # what is recorded changes nothing yet
            found = kwargs.get("out", args[0]) if func._schema.returns else None
        else:
            found = func(*args, **kwargs)
        if func is aten.lift_fresh.default and found is not None:
            self.lists[id(found)] = found
        self.launched.append((func, args, kwargs, found))
        return found

    def pool(self) -> None:
        """Memory is not shared here."""

    @torch.no_grad()
    def replay(self) -> None:
        """Every operation again, into the tensors that it has written."""
        self.replays += 1
        for func, args, kwargs, before in self.launched:
            after = func(*args, **kwargs)
            for place, x in zip(tree_leaves(before), tree_leaves(after), strict=True):
                if isinstance(place, Tensor) and place is not x:
                    place.copy_(x)


@contextmanager
def replaying() -> Generator[list[Graph], None, None]:
    """`Recorded` takes the tensors of a CPU for those of a GPU; the graphs it makes."""
    graphs: list[Graph] = []

    class Listed(Graph):
        def __init__(self) -> None:
            super().__init__()
            graphs.append(self)

    cuda: dict[str, Any] = {
        "CUDAGraph": Listed,
        "graph": _itself,
        "graph_pool_handle": lambda: (0, 1),
        "Stream": MagicMock(),
        "current_stream": MagicMock(),
        "stream": _nothing,
        "is_current_stream_capturing": lambda: any(graph.records for graph in graphs),
    }
    with (
        patch.multiple(torch.cuda, **cuda),
        patch.object(recorded, "is_on_gpu", _is_there),
        patch.object(captured, "is_on_gpu", _is_there),
    ):
        yield graphs


def _is_there(x: Tensor) -> bool:
    return True


def _itself(graph: Graph, **options: Any) -> Graph:
    return graph


def _nothing(stream: object) -> nullcontext[None]:
    return nullcontext()
