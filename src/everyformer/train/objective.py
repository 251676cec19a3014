"""From a model of labels to a loss, and to a number of right labels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from everyformer.train.task import IGNORED


class Objective(nn.Module):
    """The mean cross-entropy of the labels that `model` gives to tokens.

    The sum is divided by the number of scored tokens that the task promises, not by those
    found, so that equal parts of a batch weigh equally whoever computes them.

    Args:
        model: Maps tokens (b, n) to logits (b, n, labels).
        scored: Number of tokens with a label in every sequence.
    """

    def __init__(self, model: nn.Module, scored: int) -> None:
        """See the class."""
        super().__init__()
        self.model = model
        self.scored = scored

    def forward(
        self, tokens: Int[Tensor, "b n"], labels: Int[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        """The loss."""
        logits = self.model(tokens)
        total = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / (len(tokens) * self.scored)

    @torch.no_grad()
    def right(
        self, tokens: Int[Tensor, "b n"], labels: Int[Tensor, "b n"]
    ) -> Int[Tensor, " b"]:
        """How many labels of each sequence are right."""
        return (self.model(tokens).argmax(-1) == labels).sum(-1)
