"""A class for each example, from its first token."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.layers.encoder import Encoder
from everyformer.layers.encodings.encoding import TABLE_STD
from everyformer.train.objective import Objective, check_parts, states_of, wide


class Classify(Objective):
    """W dropout(tanh(P states_0 + p)) + b against labels (b,) with weights (b,).

    Scores: "accuracy", 1 where the class is right.

    Args:
        encoder: With a pooler, and without a head.
        classes: How many there are.
        dropout: On the pooled state.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, classes: int, dropout: float = 0.1) -> None:
        check_parts("Classify", encoder, head=False, pooler=True)
        super().__init__(encoder)
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(encoder.config.dim, classes)
        nn.init.normal_(self.classes.weight, std=TABLE_STD)
        nn.init.zeros_(self.classes.bias)

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over examples."""
        losses = functional.cross_entropy(
            self._logits(batch), batch.labels, reduction="none"
        )
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Whether the class is right."""
        return {"accuracy": (self._logits(batch).argmax(-1) == batch.labels).float()}

    def _logits(self, batch: Batch) -> Float[Tensor, "b classes"]:
        pooled = self.encoder.pooled(states_of(self.encoder, batch))
        return wide(self.classes(self.dropout(pooled)))
