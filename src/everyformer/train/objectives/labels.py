"""A label for every token."""

from jaxtyping import Float
from torch import Tensor

from everyformer.data.batch import Batch
from everyformer.layers.models.encoder import Encoder
from everyformer.train.objective import (
    Objective,
    check_parts,
    states_of,
    weighted_mean,
)


class Labels(Objective):
    """The cross-entropy of labels (b, n) with weights (b, n).

    Scores: "accuracy", the share of right labels of a sequence.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder) -> None:
        """An encoder with a head."""
        check_parts("Labels", encoder, head=True, pooler=False)
        super().__init__(encoder)

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over all tokens."""
        losses = self.label_losses(states_of(self.encoder, batch), batch.labels)
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """The share of right labels."""
        logits = self.encoder(
            batch.tokens, key_padding_mask=batch.padding, segments=batch.segments
        )
        right = (logits.argmax(-1) == batch.labels).float()
        return {"accuracy": weighted_mean(right, batch.weights)}
