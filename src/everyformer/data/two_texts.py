"""[CLS] A [SEP] B [SEP] and padding, gathered from texts that lie on the device."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Spans(NamedTuple):
    """Where A and B of each example lie in a flat array of tokens."""

    first: Int[Tensor, " b"]
    first_length: Int[Tensor, " b"]
    second: Int[Tensor, " b"]
    second_length: Int[Tensor, " b"]


class Sequences(NamedTuple):
    """Token ids, segments (1 from B on), padding, and which tokens are of a text."""

    tokens: Int[Tensor, "b n"]
    segments: Int[Tensor, "b n"]
    padding: Bool[Tensor, "b n"]
    texts: Bool[Tensor, "b n"]


def two_texts(
    tokens: Int[Tensor, " t"], spans: Spans, length: int, specials: dict[str, int]
) -> Sequences:
    """The sequences of pairs of texts; both fit: |A| + |B| + 3 <= length.

    Example:
        >>> spans = Spans(*(torch.tensor([k]) for k in (0, 2, 4, 1)))
        >>> found = two_texts(
        ...     torch.arange(10, 16), spans, 8, {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}
        ... )
        >>> found.tokens, found.segments
        (tensor([[ 1, 10, 11,  2, 14,  2,  0,  0]]), tensor([[0, 0, 0, 0, 1, 1, 0, 0]]))
    """
    place = torch.arange(length, device=tokens.device)
    first, a, second, b = (one.long()[:, None] for one in spans)
    in_first = (place >= 1) & (place <= a)
    in_second = (place >= a + 2) & (place <= a + b + 1)
    padding = place >= a + b + 3
    source = torch.where(in_second, second - a - 2, first - 1) + place
    texts = in_first | in_second
    found = tokens[source.clamp(0, len(tokens) - 1)].long()
    found = found.masked_fill(~texts, specials["[SEP]"])
    found = found.masked_fill(padding, specials["[PAD]"])
    found = found.masked_fill(place == 0, specials["[CLS]"])
    segments = ((place >= a + 2) & ~padding).long()
    return Sequences(found, segments, padding, texts)
