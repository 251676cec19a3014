"""The next token of a translation, by an encoder-decoder."""

from jaxtyping import Float
from torch import Tensor, nn

from everyformer.data.batch import Batch
from everyformer.errors import TrainingError
from everyformer.layers.models.encoder_decoder import EncoderDecoderModel
from everyformer.train.objective import Objective, given, token_losses


class Translate(Objective):
    """The cross-entropy of labels (b, n), smoothed in training alone.

    Scores are sums over the tokens of a pair, and "tokens" their number: "nats";
    "accuracy", right tokens; "nats_other_source", for the source of another pair of the
    batch, which tells whether the source is used at all.

    Args:
        encoder: The encoder-decoder.
        smoothing: Probability that is spread over all words.
    """

    encoder: EncoderDecoderModel

    def __init__(self, encoder: EncoderDecoderModel, smoothing: float = 0.1) -> None:
        if not 0.0 <= smoothing < 1.0:
            msg = f"smoothing={smoothing} is not a probability below 1; use 0.1."
            raise TrainingError(msg)
        super().__init__(encoder)
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over all tokens."""
        states = self.encoder.states(batch.tokens, target_of(batch), padding=batch.padding)
        losses = self.label_losses(states, batch.labels, self.smoothing)
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Sums for each pair."""
        logits = self.encoder(batch.tokens, target_of(batch), padding=batch.padding)
        losses = token_losses(nn.Identity(), logits, batch.labels)
        right = (logits.argmax(-1) == batch.labels).float()
        padding = batch.padding
        other = self.encoder(
            batch.tokens.roll(1, 0),
            target_of(batch),
            padding=None if padding is None else padding.roll(1, 0),
        )
        lost = token_losses(nn.Identity(), other, batch.labels)
        return {
            "nats": (losses * batch.weights).sum(-1),
            "accuracy": (right * batch.weights).sum(-1),
            "nats_other_source": (lost * batch.weights).sum(-1),
            "tokens": batch.weights.sum(-1),
        }


def target_of(batch: Batch) -> Tensor:
    """What the decoder is given."""
    lacking = "Translate needs targets, and this task gives none. Use Translations."
    return given(batch.target, lacking)
