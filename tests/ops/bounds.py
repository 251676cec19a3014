"""Interpreted kernels reach nothing but the tensors of their launch, and what is written.

A GPU would read beyond them as well, without a word, but where a page ends.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor


def _extent(x: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _blank(x: Tensor) -> Tensor:
    return x.fill_(math.nan)


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch,
    launcher: Any,
    made: Callable[[Tensor], Tensor] = _blank,
) -> Generator[list[str]]:
    """What kernels reach outside of their tensors.

    Args:
        monkeypatch: Of the test.
        launcher: The module that launches them.
        made: What it gets for new memory; NaN, which would be seen in a result.
    """
    from triton.runtime import interpreter

    found: list[str] = []
    now: dict[str, Any] = {"name": "", "extents": []}
    builder: Any = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    call, empty = executor.__call__, torch.empty

    def watch(name: str) -> None:
        plain = getattr(builder, name)

        def access(self: Any, pointers: Any, *rest: Any) -> Any:
            mask = rest[1 if name == "create_masked_store" else 0]
            chosen = (
                True
                if mask.data is None
                else np.broadcast_to(mask.data, pointers.data.shape)
            )
            places = pointers.data[chosen].astype(np.int64).ravel()
            inside = np.zeros(places.shape, bool)
            for begin, end in now["extents"]:
                inside |= (places >= begin) & (places < end)
            if not inside.all():
                found.append(f"{now['name']}: {name[14:]} of {(~inside).sum()} outside")
            return plain(self, pointers, *rest)

        monkeypatch.setattr(builder, name, access)

    def launched(self: Any, *given: Any, **options: Any) -> Any:
        tensors = [x for x in given if isinstance(x, Tensor)]
        now.update(name=self.fn.__name__, extents=[_extent(x) for x in tensors])
        return call(self, *given, **options)

    class Torch:
        """torch, whose new memory holds nothing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def empty(*sizes: Any, **options: Any) -> Tensor:
            return made(empty(*sizes, **options))

    def like(x: Tensor) -> Tensor:
        return made(empty(x.shape, dtype=x.dtype))

    with monkeypatch.context() as changed:
        monkeypatch = changed
        watch("create_masked_load")
        watch("create_masked_store")
        changed.setattr(executor, "__call__", launched)
        changed.setattr(launcher, "torch", Torch())
        changed.setattr(launcher, "empty_like", like)
        yield found
