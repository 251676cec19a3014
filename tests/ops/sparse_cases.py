"""Every kind of pattern, inputs and expected results for the tests of sparse attention."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tests.ops.cases import Results
from torch import Tensor

from everyformer import patterns
from everyformer.ops.pairwise_attention.reference import logits
from everyformer.ops.sparse_attention.operands import Operands
from everyformer.ops.sparse_attention.plans import plan_of
from everyformer.ops.sparse_attention.reference import (
    as_pairs,
    sparse_attention_reference,
)
from everyformer.patterns import Gathered, Part, Pattern, Rows

SCALE = 0.7


def all_patterns(n: int) -> dict[str, Pattern]:
    """One of every kind; widths that divide n and that do not."""
    odd = np.random.default_rng(0).permutation(n)
    return {
        "dense": patterns.dense(n),
        "causal": patterns.causal(n),
        "window": patterns.window(n, 2),
        "wide window": patterns.window(n, 20),
        "strided": patterns.strided(n, 4),
        "strided, wide": patterns.strided(n, 3, 3),
        "fixed": patterns.fixed(n, 4),
        "fixed, repaired": patterns.fixed(n, 5, repaired=True),
        "star": patterns.star(n),
        "star, wide": patterns.star(n, 3),
        "window and global": patterns.window_global(n, 1, (n // 2,)),
        "bare star": patterns.bare_star(n),
        "bigbird": patterns.big_bird(n, 3, min(2, n), 1),
        "bigbird in blocks": patterns.big_bird_blocks(n, 16, 1, 1, 1),
        "small blocks": patterns.big_bird_blocks(n, 3),
        "ring": patterns.ring(n),
        "log-sparse": patterns.log_sparse(n),
        "log-sparse, causal": patterns.log_sparse(n, causal=True),
        "dilated": patterns.dilated(n, 2, (1, 3)),
        "block-local": patterns.block_local(n, 5),
        "axial": patterns.axial(n // 3, 3) if n % 3 == 0 else patterns.axial(n, 1),
        "random": patterns.random(n, min(3, n)),
        "relabelled": patterns.relabelled(patterns.window(n, 1), odd.tolist()),
        "three at once": patterns.union(
            patterns.star(n), patterns.strided(n, 3), patterns.dilated(n, 1, 5)
        ),
        "segments and lists": patterns.union(
            patterns.block_local(n, 3), patterns.fixed(n, 5), patterns.random(n, 1)
        ),
        "no tiles": patterns.union(patterns.star(n), patterns.ring(n)),
    }


@lru_cache(maxsize=16)
def all_parts(n: int) -> dict[str, Part]:
    """All parts of all patterns, and the unions of those with several."""
    found: dict[str, Part] = {}
    for name, pattern in all_patterns(n).items():
        for number, part in enumerate(pattern.parts):
            found[f"{name}, {number + 1} of {pattern.p}"] = part
        if pattern.p > 1:
            found[f"{name}, union"] = pattern.union().parts[0]
    return found


def without_edge(part: Part, query: int, key: int) -> Part:
    """The same part, listed, less one pair."""
    rows = part.rows()
    kept = ~((rows.listeners() == query) & (rows.indices == key))
    assert kept.sum() == len(kept) - 1
    return Gathered(
        part.n, Rows.of_pairs(part.n, rows.listeners()[kept], rows.indices[kept])
    )


@dataclass(frozen=True)
class Given:
    """Tensors, and a gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_out: Tensor
    key_padding: Tensor | None

    def operands(
        self, part: Part, dropout: float = 0.0, seed: Tensor | None = None
    ) -> Operands:
        """What the forward pass takes."""
        plan = plan_of(part)
        return Operands(
            self.q, self.k, self.v, self.key_padding, seed, plan, SCALE, dropout
        )

    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """Copies of q, k and v that have gradients."""
        q, k, v = (x.detach().clone().requires_grad_() for x in (self.q, self.k, self.v))
        return q, k, v

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "Given":
        """The same in another dtype."""
        q, k, v, grad = (
            x.to(device, dtype) for x in (self.q, self.k, self.v, self.grad_out)
        )
        padding = None if self.key_padding is None else self.key_padding.to(device)
        return Given(q, k, v, grad, padding)


def given_tensors(
    n: int, d: int = 3, batch: int = 2, heads: int = 2, padding: str = "none", seed: int = 0
) -> Given:
    """Normal numbers in float64; "some" keys padded, or "all" of the last sequence."""
    random = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(batch, heads, n, d, generator=random, dtype=torch.float64)

    padded = None
    if padding != "none":
        padded = torch.rand(batch, n, generator=random) < 0.4
        if padding == "all":
            padded[-1] = True
    return Given(normal(), normal(), normal(), normal(), padded)


SEED = torch.tensor([7**20])


def wanted_results(x: Given, part: Part, dropout: float = 0.0) -> Results:
    """Those of dense masked attention in float64 on these (perhaps rounded) numbers."""
    x = x.to(torch.float64)
    q, k, v = leaves = x.leaves()
    options: dict[str, Any] = {"scale": SCALE, "key_padding": x.key_padding}
    dropped: dict[str, Any] = {"dropout": dropout, "seed": SEED}
    out = sparse_attention_reference(q, k, v, part, **options, **dropped)
    scores = logits(as_pairs(x.q, x.k, x.v, part, **options))
    gradients = torch.autograd.grad(out, leaves, x.grad_out)
    named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {"out": out.detach(), "lse": scores.logsumexp(-1), **named}


def natural(lse: Tensor) -> Tensor:
    """From base 2, as the kernels have it."""
    return lse * math.log(2)
