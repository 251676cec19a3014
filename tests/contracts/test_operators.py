"""The contract of an operator, for all five.

Fake tensors are checked under `pytest.mark.compile`: torch traces the operators there.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch
from tests.contracts.operator import OperatorContract, laid_out, normal
from tests.ops import disentangled_cases
from tests.ops.cases import Case
from tests.ops.operators import Operator, convolution, dynamic, sparse, toeplitz
from torch import Tensor

from everyformer import patterns
from everyformer.ops.disentangled_attention import library as disentangled_library
from everyformer.ops.dynamic_convolution.library import band_op, mix_op
from everyformer.ops.light_convolution.library import convolve_op, gradient_op
from everyformer.ops.sparse_attention import library as sparse_library
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.ops.toeplitz_attention import library as toeplitz_library


def _always(q: Tensor) -> bool:
    return True


class TestToeplitzAttention(OperatorContract):
    small: ClassVar[dict[str, Operator]] = {
        "both": toeplitz(Case(1, 2, 3, 4, 2)),
        "causal": toeplitz(Case(1, 2, 4, 3, 2, causal=True, gain="negative")),
        "shared, padded": toeplitz(
            Case(2, 2, 3, 4, 2, padding="all", bias="shared", gain="shared")
        ),
        "window": toeplitz(Case(1, 1, 5, 4, 1, bias="window", gain="zero")),
        "bias": toeplitz(Case(1, 2, 3, 3, 1, gain="none", causal=True)),
        "gain": toeplitz(Case(2, 1, 3, 3, 1, bias="none", padding="some")),
        "neither": toeplitz(Case(1, 1, 1, 2, 2, bias="none", gain="none")),
        "cache, group": toeplitz(
            Case(1, 2, 2, 3, 2, group=2, causal=True, offset=1, mask="added", seed=3)
        ),
        "packed, dropped": toeplitz(
            Case(1, 2, 3, 3, 1, sequences=(2, 1), dropout=0.3, mask="bool")
        ),
    }
    infinite = "window"
    longer: ClassVar[dict[str, Operator]] = {
        "rectangle": toeplitz(Case(2, 2, 9, 13, 3, padding="some")),
        "steps": toeplitz(Case(2, 2, 130, 7, 3, causal=True)),
        "all": toeplitz(
            Case(2, 4, 9, 13, 3, group=2, causal=True, offset=4, mask="bool", dropout=0.3)
        ),
    }
    interpreted = toeplitz(
        Case(
            1, 2, 5, 7, 16, padding="some", group=2, offset=1, causal=True, mask="keys",
            seed=2,
        )
    )  # fmt: skip

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.toeplitz_attention.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        q, k, v = (laid_out(layout, 2, 2, n, 4).detach() for n in (5, 7, 7))
        k, v = k[:, :1], v[:, :1]  # for a group of heads
        heads = q.shape[1]
        bias, gain = normal(heads, 22)[:, ::2], normal(1, 11)
        padded = torch.zeros(q.shape[0], 7, dtype=torch.bool)
        padded[:, 6] = True
        leaves = [x.requires_grad_() for x in (q, k, v, bias, gain)]
        mask = normal(1, 1, 7, 5).mT
        x = (*leaves, padded, mask, None, torch.tensor([5]), True, 0.3, 1, 0.2)
        yield toeplitz_library.forward_op, x
        with torch.no_grad():
            out, lse, table = toeplitz_library.forward_op(*x)
        grad = laid_out(layout, 2, 2, 5, 4).detach().requires_grad_()
        yield toeplitz_library.gradients_op, (*x, grad, out, lse, table, True, True)


class TestDisentangledAttention(OperatorContract):
    small: ClassVar[dict[str, Operator]] = {
        "padded": disentangled_cases.operator(
            disentangled_cases.Case(2, 1, 3, 4, 2, padding=True)
        ),
        "c2p": disentangled_cases.operator(
            disentangled_cases.Case(1, 2, 4, 3, 2, "clipped", "c2p", dropout=0.3)
        ),
    }
    longer: ClassVar[dict[str, Operator]] = {
        "steps": disentangled_cases.operator(
            disentangled_cases.Case(2, 2, 130, 9, 3, padding=True)
        ),
    }
    interpreted = disentangled_cases.operator(disentangled_cases.Case(1, 1, 5, 7, 16))

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.disentangled_attention.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        q, k, v, p2c = (laid_out(layout, 2, 2, n, 4).detach() for n in (5, 7, 7, 7))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        terms = None, p2c.requires_grad_()
        padded = torch.zeros(q.shape[0], 7, dtype=torch.bool)
        padded[:, 6] = True
        x = (*leaves, *terms, torch.arange(11) // 3, padded, torch.tensor([5]), 0.3, 0.2)
        yield disentangled_library.forward_op, x
        with torch.no_grad():
            out, lse = disentangled_library.forward_op(*x)
        grad = laid_out(layout, 2, 2, 5, 4).detach().requires_grad_()
        yield disentangled_library.gradients_op, (*x, grad, out, lse, False, True)


class TestSparseAttention(OperatorContract):
    small: ClassVar[dict[str, Operator]] = {
        "window": sparse(patterns.Window(4, 1, 0)),
        "padded": sparse(patterns.Star(5, 1), "all"),
        "union, dropped": sparse(
            patterns.strided(5, 2).union().parts[0], "some", dropout=0.4
        ),
    }
    longer: ClassVar[dict[str, Operator]] = {
        "band": sparse(patterns.Window(300, 2, 3), "some"),
        "pieces": sparse(patterns.big_bird(300, 3, 2, 1).parts[0]),
        "blocks": sparse(patterns.big_bird_blocks(300, 16).parts[0]),
    }
    interpreted = sparse(patterns.Columns(5, 2, last=True), "some", d=16)

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.sparse_attention.paths")
        monkeypatch.setattr(paths, "_by_kernels", _always)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        for part in (patterns.Star(5, 1), patterns.Window(300, 1, 1)):
            q, k, v, grad = (laid_out(layout, 2, 2, part.n, 4) for _ in range(4))
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            handle = plan_of(part).handle
            x = (*leaves, None, torch.tensor([5]))
            yield sparse_library.forward_op, (*x, handle, 0.3, 0.2)
            with torch.no_grad():
                out, lse = sparse_library.forward_op(*x, handle, 0.3, 0.2)
            upstream = grad.detach().requires_grad_()
            yield (
                sparse_library.gradients_op,
                (upstream, *x, out, lse, handle, 0.3, 0.2),
            )


class TestLightConvolution(OperatorContract):
    small: ClassVar[dict[str, Operator]] = {
        "one group": convolution(3, 16, 2, 4),
        "small groups": convolution(4, 4, 2, 3),
    }
    longer: ClassVar[dict[str, Operator]] = {"long": convolution(70, 16, 2, 9)}
    interpreted = convolution(5, 16, 1, 4)

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.light_convolution.paths")
        launch = import_module("everyformer.ops.light_convolution.launch")

        def only(*_: object) -> Any:
            return launch

        monkeypatch.setattr(paths, "_path", only)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        for n in (5, 70):
            x, grad = (laid_out(layout, 1, 2, n, 16)[0].detach() for _ in range(2))
            filters = normal(4, 2).mT.requires_grad_()
            yield convolve_op, (x.requires_grad_(), filters, 1)
            yield gradient_op, (grad.requires_grad_(), x, 2, 4, 1)


class TestDynamicConvolution(OperatorContract):
    small: ClassVar[dict[str, Operator]] = {
        "one group": dynamic(3, 16, 2, 4),
        "small groups": dynamic(4, 4, 2, 3),
    }
    longer: ClassVar[dict[str, Operator]] = {"long": dynamic(70, 16, 2, 9)}
    interpreted = dynamic(5, 16, 1, 4)

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = import_module("everyformer.ops.dynamic_convolution.paths")
        launch = import_module("everyformer.ops.dynamic_convolution.launch")

        def only(*_: object) -> Any:
            return launch

        monkeypatch.setattr(paths, "_path", only)

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        x, grad = (laid_out(layout, 1, 2, 40, 16)[0].detach() for _ in range(2))
        filters = normal(x.shape[0], 40, 4, 2).mT.requires_grad_()
        yield mix_op, (x.requires_grad_(), filters, 1, False)
        yield band_op, (grad.requires_grad_(), x, 2, 4, 1)
        yield mix_op, (grad, filters, 1, True)
