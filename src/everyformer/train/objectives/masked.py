"""Masked tokens, and whether one text follows the other (Devlin et al. 2018)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.layers.models.encoder import Encoder
from everyformer.train.objective import (
    Objective,
    check_parts,
    given,
    head_of,
    last_layer,
    states_of,
    token_scores,
    wide,
)


class MaskedLanguage(Objective):
    """The mean loss of masked tokens, plus the mean loss of next sentences.

    The head sees the tokens at `batch.places` alone; labels and weights are (b, m) like
    them. A window counts for its pair of texts if any of its weights is positive.

    Scores: "accuracy" and "nats" of the masked tokens of a window, and "next", 1 where the
    pair was told right.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, next_sentence: bool = True) -> None:
        """An encoder with a head, and for next sentences with a pooler."""
        check_parts("MaskedLanguage", encoder, head=True, pooler=next_sentence)
        super().__init__(encoder)
        self.terms = ("masked", "next") if next_sentence else ("masked",)
        self.next = last_layer(encoder.config.dim, 2) if next_sentence else None

    def weights(self, batch: Batch) -> Float[Tensor, " terms"]:
        """Of masked tokens, and the number of windows."""
        masked = batch.weights.sum()
        if self.next is None:
            return masked[None]
        return torch.stack([masked, _windows(batch).sum()])

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The losses summed over masked words, and over windows."""
        states = states_of(self.encoder, batch)
        losses = self.label_losses(_chosen(states, batch), batch.labels)
        masked = (losses * batch.weights).sum()
        if self.next is None:
            return masked[None]
        logits = wide(self.next(self.encoder.pooled(states)))
        told = functional.cross_entropy(logits, _next_labels(batch), reduction="none")
        return torch.stack([masked, (told * _windows(batch)).sum()])

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Means over the masked tokens of each window."""
        head = head_of(self.encoder)
        states = states_of(self.encoder, batch)
        found = token_scores(head(_chosen(states, batch)), batch)
        if self.next is not None:
            told = self.next(self.encoder.pooled(states)).argmax(-1)
            found["next"] = (told == _next_labels(batch)).float()
        return found


def _chosen(states: Float[Tensor, "b n d"], batch: Batch) -> Float[Tensor, "b m d"]:
    """The states at the places of the batch."""
    places = given(
        batch.places,
        "MaskedLanguage needs the places of the masked tokens, and this task gives "
        "none. Train Labels, which has a label for every token.",
    )
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))


def _next_labels(batch: Batch) -> Tensor:
    return given(
        batch.next_labels,
        "MaskedLanguage(next_sentence=True) needs next_labels, and this task gives "
        "none. Use next_sentence=False for both.",
    )


def _windows(batch: Batch) -> Float[Tensor, " b"]:
    """1 for a window, 0 for filling."""
    return (batch.weights.amax(-1) > 0).float()
