"""A number for each text or pair of texts, from its first token."""

from jaxtyping import Float
from torch import Tensor, nn

from everyformer.data.batch import Batch
from everyformer.layers.encoder import Encoder
from everyformer.train.objective import Objective, check_parts, last_layer, states_of, wide


class TextScore(Objective):
    """(w . dropout(tanh(P states_0 + p)) + b - y)^2 for labels y (b,) with weights (b,).

    Scores: the "prediction", and the "squared_error".

    Args:
        encoder: With a pooler, and without a head.
        dropout: On the pooled state.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, dropout: float = 0.1) -> None:
        check_parts("TextScore", encoder, head=False, pooler=True)
        super().__init__(encoder)
        self.dropout = nn.Dropout(dropout)
        self.score = last_layer(encoder.config.dim, 1)

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over examples."""
        return ((self._predicted(batch) - batch.labels) ** 2 * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """What is said, and how far off it is."""
        said = self._predicted(batch)
        return {"prediction": said, "squared_error": (said - batch.labels) ** 2}

    def _predicted(self, batch: Batch) -> Float[Tensor, " b"]:
        pooled = self.encoder.pooled(states_of(self.encoder, batch))
        return wide(self.score(self.dropout(pooled)))[:, 0]
