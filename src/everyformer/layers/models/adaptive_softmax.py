"""Adaptive softmax (Grave et al. 2017), tied to adaptive inputs (Baevski, Auli 2019).

Words are sorted by frequency and cut into a head and tails. The head has a logit for each
of its words and one for each tail; a word of tail t has the probability

    p(word) = p_head(t) p_t(word)

so frequent words cost a softmax over the head alone. With `div_value` D the words of tail t
have vectors of dim / D^t coordinates, and a map to the width of the model.
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from everyformer.errors import InputError
from everyformer.layers.encodings.encoding import TABLE_STD
from everyformer.layers.offsets import check_positive

IGNORED = -100
"""The label of a token that is not scored; its loss is 0."""


class AdaptiveSoftmax(nn.Module):
    """Inputs and outputs for a large vocabulary, with one vector for each word.

    Args:
        vocab_size: Number of words, the most frequent first.
        dim: Width of the model.
        cutoffs: Where the tails begin; none gives one softmax over all words.
        div_value: D; 1 gives all words vectors of the full width, and no maps.
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If the cutoffs do not rise, or leave no words to the last tail.

    Example:
        >>> head = AdaptiveSoftmax(50, 8, cutoffs=(10, 30))
        >>> head.embedded(torch.tensor([3, 40])).shape
        torch.Size([2, 8])
        >>> p = head.log_probabilities(torch.ones(1, 8)).exp().sum()
        >>> round(p.item(), 5)
        1.0
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        cutoffs: tuple[int, ...] = (),
        div_value: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, dim=dim, div_value=div_value)
        edges = (0, *cutoffs, vocab_size)
        if any(low >= high for low, high in pairwise(edges)):
            msg = (
                f"cutoffs={cutoffs} do not cut {vocab_size} words: give rising numbers "
                f"above 0 and below {vocab_size}, or none."
            )
            raise InputError(msg)
        widths = [dim // div_value**place for place in range(len(edges) - 1)]
        if widths[-1] < 1:
            msg = (
                f"div_value={div_value} leaves the last of {len(widths)} groups of words "
                f"{widths[-1]} of {dim} coordinates. Use a smaller one, or fewer cutoffs."
            )
            raise InputError(msg)
        self.edges, self.dim, self.vocab_size = edges, dim, vocab_size

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        sizes = [high - low for low, high in pairwise(edges)]
        self.table = made(vocab_size, dim) if div_value == 1 else None
        self.tables, self.maps = nn.ParameterList(), nn.ParameterList()
        if div_value > 1:
            pairs = zip(sizes, widths, strict=True)
            self.tables.extend(made(size, width) for size, width in pairs)
            self.maps.extend(made(width, dim) for width in widths[1:])
        self.word_bias = made(vocab_size)
        self.tail_weight = made(len(cutoffs), dim) if cutoffs else None
        self.tail_bias = made(len(cutoffs)) if cutoffs else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Vectors and maps N(0, 0.02^2), biases 0."""
        for parameter in (self.table, *self.tables, *self.maps, self.tail_weight):
            if parameter is not None:
                nn.init.normal_(parameter, std=TABLE_STD)
        nn.init.zeros_(self.word_bias)
        if self.tail_bias is not None:
            nn.init.zeros_(self.tail_bias)

    def embedded(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d"]:
        """The vectors of words, at the width of the model."""
        if self.table is not None:
            return functional.embedding(tokens, self.table)
        found = self.tables[0].new_zeros(*tokens.shape, self.dim)
        for group, (low, high) in enumerate(pairwise(self.edges)):
            inside = (tokens >= low) & (tokens < high)
            rows = functional.embedding(tokens[inside] - low, self._vectors(group))
            found[inside] = self._widened(group, rows).to(found.dtype)
        return found

    def losses(
        self, states: Float[Tensor, "*batch d"], labels: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """-log p of each label, in float32 at least; 0 for ignored ones."""
        flat, wanted = states.flatten(0, -2), labels.flatten()
        top = self._head(flat)
        first = self.edges[1]
        slot = wanted.clamp(0, first - 1)
        for group, low in enumerate(self.edges[1:-1], start=1):
            slot = torch.where(wanted >= low, first + group - 1, slot)
        found = -top.gather(-1, slot[:, None])[:, 0]
        for group, (low, high) in enumerate(pairwise(self.edges[1:]), start=1):
            rows = ((wanted >= low) & (wanted < high)).nonzero()[:, 0]
            inner = self._tail(group, flat[rows])
            own = -inner.gather(-1, (wanted[rows] - low)[:, None])[:, 0]
            found = found.index_add(0, rows, own)
        return found.masked_fill(wanted == IGNORED, 0.0).view(labels.shape)

    def log_probabilities(
        self, states: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch words"]:
        """log p of all words."""
        top = self._head(states)
        first = self.edges[1]
        parts = [top[..., :first]]
        for group in range(1, len(self.edges) - 1):
            place = first + group - 1
            parts.append(self._tail(group, states) + top[..., place : place + 1])
        return torch.cat(parts, -1)

    def _head(self, states: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch m"]:
        weight, bias = self._vectors(0), self.word_bias[: self.edges[1]]
        if self.tail_weight is not None and self.tail_bias is not None:
            weight = torch.cat([weight, self.tail_weight])
            bias = torch.cat([bias, self.tail_bias])
        return _log_softmax(functional.linear(states, weight, bias))

    def _tail(
        self, group: int, states: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch m"]:
        low, high = self.edges[group], self.edges[group + 1]
        inner = states if self.table is not None else states @ self.maps[group - 1].mT
        logits = functional.linear(inner, self._vectors(group), self.word_bias[low:high])
        return _log_softmax(logits)

    def _vectors(self, group: int) -> Float[Tensor, "m w"]:
        if self.table is None:
            return self.tables[group]
        return self.table[self.edges[group] : self.edges[group + 1]]

    def _widened(self, group: int, rows: Float[Tensor, "m w"]) -> Float[Tensor, "m d"]:
        return rows @ self.maps[group - 1] if group else rows


def _log_softmax(logits: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return torch.log_softmax(logits.to(dtype), -1)
