"""The answer to a question: a span of tokens of its context (Devlin et al. 2018)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.layers.models.encoder import Encoder
from everyformer.train.objective import (
    Objective,
    check_parts,
    given,
    last_layer,
    states_of,
    wide,
)


class Span(Objective):
    """The mean of the cross-entropies of the first and the last token of the answer.

    Labels are (b, 2): start and end, both 0 where the window holds no answer. Weights are
    (b,), or (b, 2) for each label.

    Scores, for each window: "start" and "end" of the best span, and its "score", the sum
    of both logits. The span lies in the context (segment 1 without padding and without the
    last [SEP]), start <= end < start + longest, and `batch.places` (b, n), where given, is
    1 for the tokens that may start it. The score is -inf where no span is allowed.

    Args:
        encoder: Without a head and a pooler.
        longest: Tokens of a span, at most.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, longest: int = 30) -> None:
        check_parts("Span", encoder, head=False, pooler=False)
        super().__init__(encoder)
        self.longest = longest
        self.ends = last_layer(encoder.config.dim, 2)

    def weights(self, batch: Batch) -> Float[Tensor, " terms"]:
        """Of both labels."""
        return _label_weights(batch).sum()[None]

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over both labels of all windows."""
        losses = functional.cross_entropy(
            self._logits(batch), batch.labels, reduction="none"
        )
        return (losses * _label_weights(batch)).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """The best span of each window."""
        context = _context(batch)
        starts = context if batch.places is None else context & (batch.places > 0)
        logits = self._logits(batch)
        start = logits[..., 0].masked_fill(~starts, -math.inf)
        end = logits[..., 1].masked_fill(~context, -math.inf)
        n = start.shape[-1]
        order = torch.ones(n, n, dtype=torch.bool, device=start.device)
        allowed = order.triu() & order.tril(self.longest - 1)
        pairs = start[:, :, None] + end[:, None, :]
        best, place = pairs.masked_fill(~allowed, -math.inf).flatten(1).max(-1)
        return {"score": best, "start": place // n, "end": place % n}

    def _logits(self, batch: Batch) -> Float[Tensor, "b n 2"]:
        """Of start and end, by token; nothing starts or ends in padding."""
        logits = wide(self.ends(states_of(self.encoder, batch)))
        if batch.padding is None:
            return logits
        # Finite, so that filling, which is padding alone, gives no NaN with its weight 0.
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(batch.padding[..., None], lowest)


def _label_weights(batch: Batch) -> Float[Tensor, "b 2"]:
    weights = batch.weights if batch.weights.dim() == 2 else batch.weights[:, None]
    return weights.expand(-1, 2)


def _context(batch: Batch) -> Bool[Tensor, "b n"]:
    """Segment 1, without padding and without its last token, [SEP]."""
    segments = given(
        batch.segments,
        "Span looks for answers in segment 1, and this task gives no segments. Give "
        "segments: 0 for the question, 1 for its context.",
    )
    context = segments == 1
    if batch.padding is not None:
        context = context & ~batch.padding
    places = torch.arange(context.shape[-1], device=context.device)
    last = torch.where(context, places, -1).amax(-1, keepdim=True)
    return context & (places < last)
