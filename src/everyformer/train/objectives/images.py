"""A class for each image."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.layers.image_encoder import ImageEncoder
from everyformer.train.objective import Objective, wide


class ClassifyImages(Objective):
    """The cross-entropy of classes (b,) with weights (b,); tokens are pixels.

    Scores: "accuracy", 1 where the class is right.
    """

    encoder: ImageEncoder

    def __init__(self, encoder: ImageEncoder) -> None:
        """An encoder for images."""
        super().__init__(encoder)

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over images."""
        logits = wide(self.encoder(batch.tokens))
        losses = functional.cross_entropy(logits, batch.labels, reduction="none")
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Whether the class is right."""
        return {"accuracy": (self.encoder(batch.tokens).argmax(-1) == batch.labels).float()}
