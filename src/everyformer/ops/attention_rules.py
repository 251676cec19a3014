"""What torch knows of a fused operator of attention: all derivatives, and vmap.

Such an operator has two records. Its operands begin with q, k, v and maybe further terms,
which have gradients; then come tensors without gradients, then numbers. What the backward
pass takes beside them begins with the gradient of the output and all results of the forward
pass, the output first, and ends with whether the gradients of further terms are wanted.
torch takes the fields of both one by one.

The first derivative is that of the kernels. The backward pass is a function of its own,
whose derivative is that of the reference, in plain torch: O(n_q n_k) memory, `STEP_ENTRIES`
weights at a time. Third derivatives and all further ones are those of plain torch.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from everyformer.ops.copies import Dims, in_one_batch, one_by_one
from everyformer.ops.eager import is_forward_mode, is_transformed, without_autocast

STEP_ENTRIES = 2**24
"""Weights whose second derivatives are taken together, if a sequence has fewer."""

DIFFERENTIABLE = 5
"""q, k, v and two terms, in most operators."""

Gradients = tuple[Tensor | None, ...]
Join = Callable[[Any, int, Dims, Any], tuple[Any, Any] | None]


class Parts(NamedTuple):
    """What one operator is made of.

    Attributes:
        operands: The record of its operands. Its property `along_batch` says of each field
            whether its first axis is the batch.
        incoming: The record of what the backward pass takes beside them.
        forward: From the operands to the output, the LSE and whatever else.
        gradients: From both records to the gradients; None where not needed.
        attend: The reference, on the sequences of a batch from a number on.
        join: vmap over the operator or its backward pass by a single call, or None where
            that is impossible; by default by a larger batch.
        differentiable: How many operands have gradients.
        whole: Whether the reference takes all sequences at once, as its memory does not
            follow n_q n_k.
        apart: Makes gradients outputs of an operator, which share no memory.
    """

    operands: Any
    incoming: Any
    forward: Callable[[Any], tuple[Tensor, ...]]
    gradients: Callable[[Any, Any], Gradients]
    attend: Callable[[Any, int], Tensor]
    join: Join | None = None
    differentiable: int = DIFFERENTIABLE
    whole: bool = False
    apart: Callable[[Any], tuple[Tensor, ...]] = tuple


class Rules:
    """The derivatives of an operator, and its `autograd.Function`s.

    Attributes:
        direct: The operator without the dispatcher, which costs more than the kernels at
            small n. It has the output alone.
        transformed: The same for `torch.func`, with all results as outputs.
        recorded: The backward pass, by the kernels, itself differentiable.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._count = parts.differentiable
        hints = [get_type_hints(parts.operands)[name] for name in parts.operands._fields]
        self._tensors = sum(hint in (Tensor, Tensor | None) for hint in hints)
        self.direct: Any = _direct(self)
        self.transformed: Any = _transformed(self)
        self.recorded: Any = _recorded(self)

    def split(self, given: Sequence[Any]) -> tuple[Any, Any]:
        """The arguments of the backward pass as its two records."""
        size = len(self.parts.operands._fields)
        return self.parts.operands(*given[:size]), self.parts.incoming(*given[size:])

    def gradients(self, *given: Any) -> tuple[Tensor, ...]:
        """The backward pass, by the kernels: empty where not needed. Some share memory."""
        x, incoming = self.split(given)
        found = self.parts.gradients(x, incoming)
        return tuple(x.q.new_empty(0) if y is None else y for y in found)

    def keep(self, ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
        """Keep the operands and all results; no gradient comes but to the output."""
        self.keep_operands(ctx, inputs, *output)
        ctx.mark_non_differentiable(*output[1:])

    def keep_operands(self, ctx: Any, x: Sequence[Any], *others: Tensor) -> None:
        """Keep the operands and some further tensors."""
        ctx.numbers = tuple(x[self._tensors :])
        ctx.save_for_backward(*x[: self._tensors], *others)

    def _kept(self, ctx: Any) -> tuple[Any, tuple[Tensor, ...]]:
        saved = ctx.saved_tensors
        x = self.parts.operands._make((*saved[: self._tensors], *ctx.numbers))
        return x, saved[self._tensors :]

    def pull_back(self, ctx: Any, grad_out: Tensor, gradients: Any) -> Gradients:
        """The gradients of all arguments, by the function given."""
        x, results = self._kept(ctx)
        others = (None,) * (len(x) - self._count)
        if is_forward_mode():
            return *self._plain_gradients(x, grad_out), *others
        needs = ctx.needs_input_grad[3 : self._count]
        found = gradients(*x, grad_out, *results, *needs)
        terms = (y if needed else None for y, needed in zip(found[3:], needs, strict=True))
        return *found[:3], *terms, *others

    def keep_gradients(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keep what the gradients are functions of; the results follow from it."""
        x, incoming = self.split(inputs)
        ctx.needs = incoming[len(incoming) + 3 - self._count :]
        self.keep_operands(ctx, x, incoming.grad_out)

    def pull_back_gradients(self, ctx: Any, *upstream: Tensor) -> Gradients:
        """The derivative of the gradients, by the reference, some sequences at a time."""
        with without_autocast(upstream[0]):
            return self._slopes(ctx, upstream)

    def _slopes(self, ctx: Any, upstream: Sequence[Tensor]) -> Gradients:
        whole, (grad_out,) = self._kept(ctx)
        along = whole.along_batch
        there = [k for k, y in enumerate(whole[: self._count]) if y is not None]
        needed = (True, True, True, *ctx.needs)
        wanted = [upstream[k] if needed[k] else torch.zeros_like(whole[k]) for k in there]
        b, h, n_q = whole.q.shape[:3]
        together = max(1, STEP_ENTRIES // (h * n_q * whole.k.shape[2]))
        together = b if self.parts.whole else together
        parts: list[Sequence[Tensor]] = []
        for start in range(0, b, together):
            some = slice(start, start + together)
            x = whole._make(
                y[some] if y is not None and of_batch else y
                for y, of_batch in zip(whole, along, strict=True)
            )

            def gradients(
                grad: Tensor, *y: Tensor, x: Any = x, start: int = start
            ) -> tuple[Tensor, ...]:
                found = self._plain_gradients(self._with(x, y), grad, start)
                return tuple(g for g in found if g is not None)

            pull: Any = torch.func.vjp(gradients, grad_out[some], *(x[k] for k in there))[1]
            slopes = zip(there, wanted, strict=True)
            parts.append(pull(tuple(y[some] if along[k] else y for k, y in slopes)))
        dgrad, *columns = zip(*parts, strict=True)
        found = [
            torch.cat(column) if along[k] else torch.stack(column).sum(0)
            for k, column in zip(there, columns, strict=True)
        ]
        others = (None,) * (len(whole) - self._count)
        rest = (None,) * (len(self.parts.incoming._fields) - 1)
        own = self._with(whole, found)[: self._count]
        return *own, *others, torch.cat(dgrad), *rest

    def _plain_gradients(self, x: Any, grad_out: Tensor, first: int = 0) -> Gradients:
        """Those of the reference, differentiable themselves."""

        def attend(*given: Tensor) -> Tensor:
            return self.parts.attend(self._with(x, given), first)

        there = (y for y in x[: self._count] if y is not None)
        with without_autocast(x.q):
            pull: Any = torch.func.vjp(attend, *there)[1]
            return self._with(x, pull(grad_out))[: self._count]

    def _with(self, x: Any, found: Iterable[Tensor]) -> Any:
        """The operands with other tensors in the places where they have gradients."""
        left = iter(found)
        changed = (None if y is None else next(left) for y in x[: self._count])
        return x._make((*changed, *x[self._count :]))

    def copies(self, function: Any, count: int, in_dims: Dims, given: Any) -> Any:
        """vmap: by a single call where there is one, otherwise one by one."""
        join = self.parts.join or self._larger_batch
        found = join(function, count, in_dims, given)
        return one_by_one(function, count, in_dims, given) if found is None else found

    def _larger_batch(self, function: Any, count: int, in_dims: Dims, given: Any) -> Any:
        """By one batch, unless what a batch shares has a gradient or differs.

        Nor if weights are dropped, which they are by their place in the batch.
        """
        size = len(self.parts.operands._fields)
        x = self.parts.operands(*given[:size])
        one = self.parts.operands._make(
            y if dim is None or not isinstance(y, Tensor) else y.select(dim, 0)
            for y, dim in zip(x, in_dims[:size], strict=True)
        )
        shared = {
            k
            for k, (y, of_batch) in enumerate(zip(one, one.along_batch, strict=True))
            if isinstance(y, Tensor) and not of_batch
        }
        if x.dropout > 0.0 or any(
            k < self._count or in_dims[k] is not None for k in shared
        ):
            return None
        return in_one_batch(function, count, in_dims, given, shared)


def without_one_key(k: Tensor, *of_logits: Tensor | None) -> None:
    """Where there is one key it has weight 1, whatever its logit: dS = 0, unrounded."""
    if k.shape[2] == 1:
        for gradient in of_logits:
            if gradient is not None:
                gradient.zero_()


def _direct(rules: Rules) -> type[torch.autograd.Function]:
    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            results = rules.parts.forward(rules.parts.operands(*given))
            rules.keep_operands(ctx, given, *results)
            return results[0]

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Gradients:  # pyright: ignore[reportIncompatibleMethodOverride]
            """By the kernels; recorded where somebody differentiates once more."""
            again = torch.is_grad_enabled() or is_transformed()
            gradients = rules.recorded.apply if again else rules.gradients
            return rules.pull_back(ctx, grad_out, gradients)

    return Direct


def _transformed(rules: Rules) -> type[torch.autograd.Function]:
    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return rules.parts.forward(rules.parts.operands(*given))

        setup_context = staticmethod(rules.keep)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor, *_: Any) -> Gradients:  # pyright: ignore[reportIncompatibleMethodOverride]
            return rules.pull_back(ctx, grad_out, rules.recorded.apply)

        @staticmethod
        def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return rules.copies(Transformed, info.batch_size, in_dims, given)

    return Transformed


def _recorded(rules: Rules) -> type[torch.autograd.Function]:
    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(*given: Any) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return rules.parts.apart(rules.gradients(*given))

        setup_context = staticmethod(rules.keep_gradients)
        backward = staticmethod(rules.pull_back_gradients)

        @staticmethod
        def vmap(info: Any, in_dims: Dims, *given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return rules.copies(Recorded, info.batch_size, in_dims, given)

    return Recorded
