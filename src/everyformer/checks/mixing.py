"""The matrices that multiply the values, seen while a module runs."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from everyformer.checks.calling import call

Feed = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class _SeenEnough(BaseException):
    """Leaves a forward; not an Exception, so that no module takes it for one of its own."""


def mixing_matrices(
    module: nn.Module, x: torch.Tensor, feed: Feed = call, *, first: bool = False
) -> list[torch.Tensor]:
    """The matrices that multiply the values, (heads, n, n), as far as they are seen.

    Args:
        module: The module.
        x: One sequence, (1, n, d).
        feed: Called as feed(module, x).
        first: Leave the forward after the first matrix that parameters have a part in.
    """
    n = x.shape[1]
    with _Mixing(n, first=first) as seen, suppress(_SeenEnough):
        feed(module, x)
    return [A.reshape(-1, n, n) for A in seen.matrices]


class _Mixing(TorchFunctionMode):
    """Note the n x n matrices that multiply n rows.

    A matrix counts if it comes out of a product of two tensors with a batch, or of anything
    done to one: a projected query may have the same shape.
    """

    def __init__(self, seq_len: int, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.seq_len = seq_len
        self.matrices: list[torch.Tensor] = []
        self.pairs: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            self._see_fused(func, args, kwargs)
        product = name in ("matmul", "bmm", "__matmul__") and len(args) == 2
        if (
            product
            and id(args[0]) in self.pairs
            and args[1].shape[-2:-1] == (self.seq_len,)
        ):
            self._see(args[0])
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and self._is_square(result):
            made = product and min(args[0].ndim, args[1].ndim) >= 3
            kept = any(isinstance(a, torch.Tensor) and id(a) in self.pairs for a in args)
            if made or kept:
                self.pairs[id(result)] = result  # kept alive, so that its id stays its own
        return result

    def _see(self, matrix: torch.Tensor) -> None:
        self.matrices.append(matrix)
        if self.first and matrix.requires_grad:
            raise _SeenEnough

    def _is_square(self, tensor: torch.Tensor) -> bool:
        return tensor.ndim >= 3 and tensor.shape[-2:] == (self.seq_len, self.seq_len)

    def _see_fused(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """The weights, as what becomes of the unit matrix."""
        names = ("query", "key", "value")
        given = dict(zip(names, args, strict=False)) | kwargs
        q, k, v = (given.pop(name) for name in names)
        n = self.seq_len
        if q.shape[-2] == k.shape[-2] == n:
            one = torch.eye(n, dtype=v.dtype).expand(*v.shape[:-2], n, n)
            self._see(func(q, k, one, *args[3:], **given))
