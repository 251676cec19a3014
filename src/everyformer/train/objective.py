"""What is trained: an encoder with its heads, its losses and its scores.

An objective has one or more *terms*, each a mean of weighted losses; the loss of an update
is their sum, as BERT adds the mean over masked tokens and the mean over pairs of texts:

    loss = sum_k S_k / W_k,    S_k = sum of weighted losses,    W_k = sum of weights,

both sums over all examples of the update, whoever computes which of them. A mean of the
means of unequal parts would be another number. The weights are a function of the batch
alone, so W is known, and summed over parts and processes, before the first backward pass;
each part then contributes sum_k S_k(part) / W_k, and gradients add up without a correction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.data.task import IGNORED
from everyformer.errors import TrainingError, refuse
from everyformer.layers.encodings.encoding import TABLE_STD
from everyformer.layers.models.encoder import Encoder

Part = TypeVar("Part")


class Objective(nn.Module, ABC):
    """A model with its losses; subclasses give weights, forward and scores.

    Attributes:
        terms: Names of the terms of the loss.
        in_order: Whether it remembers what it was given before, so that examples must come
            in their order.
        encoder: What a later run may start from; its blocks are compiled one by one.
        token_losses: The function of that name, or its compiled form.
    """

    terms: tuple[str, ...] = ("loss",)
    in_order: bool = False

    def __init__(self, encoder: nn.Module) -> None:
        """An objective on top of an encoder."""
        super().__init__()
        self.encoder = encoder
        self.token_losses: Callable[..., Tensor] = token_losses

    def label_losses(
        self,
        states: Float[Tensor, "*batch d"],
        labels: Int[Tensor, "*batch"],
        smoothing: float = 0.0,
    ) -> Float[Tensor, "*batch"]:
        """The losses of labels by the encoder's head, compiled or not.

        Labels of other strides would be compiled once more, so they have the plain ones.
        """
        head, labels = head_of(self.encoder), labels.contiguous()
        if not smoothing:
            return self.token_losses(head, states, labels)
        return self.token_losses(head, states, labels, smoothing)

    def weights(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum of weights of each term, from the batch alone."""
        return batch.weights.sum().float()[None]

    @abstractmethod
    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum of weighted losses of each term, in float32 at least."""

    @abstractmethod
    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """What is measured, one row for each example."""


def token_losses(
    head: nn.Module,
    states: Float[Tensor, "*batch d"],
    labels: Int[Tensor, "*batch"],
    smoothing: float = 0.0,
) -> Float[Tensor, "*batch"]:
    """The cross-entropy of each label, in nats; 0 for ignored ones.

    With smoothing e the label has probability 1 - e + e / V and every other word e / V
    (Szegedy et al. 2016): log sum_v exp(x_v) - (1 - e) x_label - e mean_v x_v.
    """
    logits = wide(head(states))
    if smoothing:
        known = labels.clamp_min(0)[..., None]
        said = logits.gather(-1, known)[..., 0]
        meant = (1 - smoothing) * said + smoothing * logits.mean(-1)
        losses = logits.logsumexp(-1) - meant
        return losses.masked_fill(labels == IGNORED, 0.0)
    losses = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(labels.shape)


def wide(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """In float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def head_of(encoder: nn.Module) -> nn.Module:
    """The head that `check_parts` has seen."""
    head = getattr(encoder, "head", None)
    if not isinstance(head, nn.Module):
        msg = "The head of this encoder was taken away. Make the objective anew."
        raise TrainingError(msg)
    return head


def states_of(encoder: Encoder, batch: Batch) -> Float[Tensor, "b n d"]:
    """The states of all tokens of a batch."""
    return encoder.states(
        batch.tokens, key_padding_mask=batch.padding, segments=batch.segments
    )


def token_scores(
    logits: Float[Tensor, "b m V"], batch: Batch
) -> dict[str, Float[Tensor, " b"]]:
    """The share of right labels of each row, and their mean loss."""
    right = (logits.argmax(-1) == batch.labels).float()
    losses = token_losses(nn.Identity(), logits, batch.labels)
    return {
        "accuracy": weighted_mean(right, batch.weights),
        "nats": weighted_mean(losses, batch.weights),
    }


def last_layer(inputs: int, outputs: int) -> nn.Linear:
    """The layer that an objective has on top of an encoder, as BERT's begin."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=TABLE_STD)
    nn.init.zeros_(layer.bias)
    return layer


def given(part: Part | None, lacking: str) -> Part:
    """A part of a batch that an objective cannot do without.

    Raises:
        TrainingError: If the task gives none; `lacking` says what to do.
    """
    if part is None:
        raise TrainingError(lacking)
    return part


def weighted_mean(
    values: Float[Tensor, "b m"], weights: Float[Tensor, "b m"]
) -> Float[Tensor, " b"]:
    """The mean of each row; 0 for filling."""
    return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1e-20)


def check_parts(objective: str, encoder: Encoder, *, head: bool, pooler: bool) -> None:
    """Refuse an encoder that lacks a part of the objective, or has one without a gradient.

    Raises:
        TrainingError: With all reasons.
    """
    wrong: list[str] = []
    for name, found, wanted, on, off in (
        ("head", encoder.head is not None, head, "'tied' or 'untied'", "'none'"),
        ("pooler", encoder.pooler is not None, pooler, "True", "False"),
    ):
        if wanted and not found:
            wrong.append(f"the encoder has no {name}; set {name}={on} in its config")
        elif found and not wanted:
            wrong.append(
                f"the encoder has a {name} that nothing trains; set {name}={off} in its "
                "config"
            )
    refuse(f"{objective} cannot be trained", wrong, TrainingError)
