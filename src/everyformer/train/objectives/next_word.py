"""The next word of running text, by a stack that remembers what came before."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from everyformer.data.batch import Batch
from everyformer.data.streams import Reading
from everyformer.errors import TrainingError
from everyformer.layers.models.transformer_xl import Remembered, TransformerXLModel, View
from everyformer.train.objective import Objective, given
from everyformer.train.recurrence import Recurrence


class NextWord(Objective):
    """The cross-entropy of the words of `Streams`.

    Every forward pass in training moves the memory of its streams on; so does every
    evaluation of its own stream.

    Scores: "losses", of each token of a segment, filled up to the longest reading.

    Args:
        encoder: The stack.
        streams: Sequences of an update, over all processes and parts.
        places: Tokens of the memory in training.
        readings: Of evaluations, as the task has them.
    """

    encoder: TransformerXLModel
    in_order = True

    def __init__(
        self,
        encoder: TransformerXLModel,
        *,
        streams: int,
        places: int,
        readings: Sequence[Reading],
    ) -> None:
        super().__init__(encoder)
        self.memory = Recurrence(encoder, streams, places)
        self._readings = {
            one.length: (one, Recurrence(encoder, 1, one.places)) for one in readings
        }

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over all tokens."""
        states = self._states(batch, self.memory, View())
        losses = self._losses(states, batch.labels)
        return (losses * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of every token, in float32; 0 where there is none.

        Raises:
            TrainingError: If nobody reads segments of that length.
        """
        length = batch.tokens.shape[1]
        if length not in self._readings:
            msg = (
                f"Segments of {length} tokens are not read in evaluations; "
                f"{', '.join(map(str, self._readings))} are. Give task and objective the "
                "same readings."
            )
            raise TrainingError(msg)
        reading, memory = self._readings[length]
        view = View(reading.clamp, reading.same_length)
        states = self._states(batch, memory, view)
        losses = self._losses(states, batch.labels) * batch.weights
        return {"losses": functional.pad(losses, (0, max(self._readings) - length))}

    def get_extra_state(self) -> dict[str, Any]:
        """The memory, for a checkpoint."""
        return self.memory.state()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on with the memory of a checkpoint."""
        self.memory.restore(state)

    def _states(
        self, batch: Batch, memory: Recurrence, view: View
    ) -> Float[Tensor, "b n d"]:
        streams, fresh = _going_on(batch)
        states, after = self.encoder.states(batch.tokens, memory.read(streams, fresh), view)
        memory.write(streams, Remembered(*(part.detach() for part in after)))
        return states

    def _losses(
        self, states: Float[Tensor, "b n d"], labels: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b n"]:
        if self.encoder.config.cutoffs or self.encoder.config.div_value > 1:
            return self.encoder.words.losses(states, labels)
        return self.label_losses(states, labels)


def _going_on(batch: Batch) -> tuple[Tensor, Tensor]:
    lacking = (
        "NextWord remembers streams, and this task names none. Train NextToken, which "
        "reads every sequence alone, or a task of Streams."
    )
    return given(batch.streams, lacking), given(batch.fresh, lacking)
