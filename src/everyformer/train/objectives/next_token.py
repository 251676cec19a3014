"""A label for every token, scored in nats too: the next one, or one before."""

from torch import Tensor

from everyformer.data.batch import Batch
from everyformer.train.objective import head_of, states_of, token_losses, token_scores
from everyformer.train.objectives.labels import Labels


class NextToken(Labels):
    """The cross-entropy of labels (b, n) with weights (b, n), as `Labels`.

    Scores: "accuracy" and "nats", means over the labels of a sequence that have a weight.
    """

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """The share of right labels, and their mean loss."""
        logits = head_of(self.encoder)(states_of(self.encoder, batch))
        return token_scores(logits, batch)


class TokenLosses(Labels):
    """The cross-entropy of labels (b, n) with weights (b, n), as `Labels`.

    Scores: "losses", of every token of a sequence; 0 where it has no weight.
    """

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of every token."""
        states = states_of(self.encoder, batch)
        losses = token_losses(head_of(self.encoder), states, batch.labels)
        return {"losses": losses * batch.weights}
