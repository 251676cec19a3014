"""What a CUDA graph reads is never forgotten; a CPU says here that it is captured."""

import gc
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from everyformer import patterns
from everyformer.layers import kept_indexes
from everyformer.layers.kept_indexes import kept_index
from everyformer.model.execute.pack import PackedLayers
from everyformer.ops import captured
from everyformer.ops.sparse_attention.operands import Operands
from everyformer.ops.sparse_attention.plans import PreparedPart, plan_of
from everyformer.ops.sparse_attention.problem import Problem

CPU = torch.device("cpu")


@contextmanager
def capturing(now: bool) -> Generator[None, None, None]:
    """All that is done belongs to a graph, or to none."""
    with (
        patch.object(captured, "is_on_gpu", return_value=now),
        patch.object(torch.cuda, "is_current_stream_capturing", return_value=now),
    ):
        yield


@pytest.mark.parametrize("now", [True, False])
def test_kept_vectors(now: bool) -> None:
    """The store holds 64, and forgets all when there are more."""

    def vector(length: int) -> torch.Tensor:
        return kept_index(("test", now, length), CPU, lambda: torch.arange(length))

    vector(1)  # made before
    with capturing(now):
        found = weakref.ref(vector(1))
    for length in range(2, 3 + kept_indexes.MOST_KEPT):
        vector(length)
    gc.collect()
    assert (found() is not None) == now


def test_what_a_graph_makes_itself_goes_with_it() -> None:
    with capturing(True):
        made = kept_index(("test", "captured"), CPU, lambda: torch.arange(3))
    found = weakref.ref(made)
    del made
    gc.collect()
    assert found() is None


@pytest.mark.parametrize("now", [True, False])
def test_weights_of_a_network(now: bool) -> None:
    """The store holds 256, and forgets all when there are more."""
    cuda: Any = import_module("everyformer.model.execute.cuda")
    parts = [
        PackedLayers("test", "feed-forward", np.zeros((1, 1)), (1,), special=False)
        for _ in range(258)
    ]

    def weights(part: PackedLayers, now: bool = False) -> torch.Tensor:
        with capturing(now):
            return cuda._on_device(part, torch.float64, CPU)

    with patch.dict(cuda._WEIGHTS, clear=True):
        weights(parts[0])  # made before
        found = weakref.ref(weights(parts[0], now))
        for part in parts:
            weights(part)
        gc.collect()
        assert (found() is not None) == now


def operands(plan: PreparedPart, batch: int) -> Operands:
    q, k, v = (torch.randn(batch, 1, 6, 16) for _ in range(3))
    return Operands(q, k, v, None, None, plan, 0.25)


@pytest.mark.parametrize("now", [True, False])
def test_prepared_launches(now: bool) -> None:
    """With them go the lists that their kernels walk along."""
    launch = import_module("everyformer.ops.sparse_attention.launch")
    star = patterns.Star(6, 1)
    plan = plan_of(star)
    walks = plan.walks(CPU)
    first = operands(plan, 1)
    launch.forward(first, walks)  # made before
    with capturing(now):
        out, lse = launch.forward(first, walks)
    found = weakref.ref(walks.forward(Problem.of(first))[0])
    for batch in range(2, 3 + launch.MOST_PROBLEMS):
        walks.forward(Problem.of(operands(plan, batch)))
    del star, plan, walks, first, out, lse
    gc.collect()
    assert (found() is not None) == now
