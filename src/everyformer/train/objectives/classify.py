"""A class or a number for each text, from its first token; a class for each image."""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.image_encoder import ImageEncoder
from everyformer.train.objective import Objective, check_parts, last_layer, states_of, wide


class OneClass(Objective):
    """The cross-entropy of classes (b,) with weights (b,).

    Scores: "accuracy", 1 where the class is right.
    """

    @abstractmethod
    def logits(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Of every class, in float32 at least."""

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over examples."""
        losses = functional.cross_entropy(
            self.logits(batch), batch.labels, reduction="none"
        )
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Whether the class is right."""
        return {"accuracy": (self.logits(batch).argmax(-1) == batch.labels).float()}


class Classify(OneClass):
    """W dropout(tanh(P states_0 + p)) + b against labels (b,) with weights (b,).

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
        self.classes = last_layer(encoder.config.dim, classes)

    def logits(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """From the pooled state."""
        pooled = self.encoder.pooled(states_of(self.encoder, batch))
        return wide(self.classes(self.dropout(pooled)))


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


class ClassifyImages(OneClass):
    """A class for each image; tokens are pixels."""

    encoder: ImageEncoder

    def logits(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """As the encoder has them."""
        return wide(self.encoder(batch.tokens))
