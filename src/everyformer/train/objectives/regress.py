"""A number for each graph."""

from jaxtyping import Float
from torch import Tensor

from everyformer.data.batch import Batch
from everyformer.errors import TrainingError
from everyformer.layers.graphs.batch import GraphBatch
from everyformer.layers.graphs.graphormer import GraphormerModel
from everyformer.layers.graphs.message_passing import MessagePassingModel
from everyformer.train.objective import Objective, given, wide


class Regress(Objective):
    """|y - (mean + scale g(x))| / scale for labels y (b,) with weights (b,).

    Scores: "mae", the absolute error in the units of y; "mae_without_structure", the same
    for the graph without distances and paths; and the "prediction".

    Args:
        encoder: Of graphs.
        mean: Of the training labels, where they are to be standardised.
        scale: Their standard deviation.
    """

    encoder: GraphormerModel | MessagePassingModel

    def __init__(
        self,
        encoder: GraphormerModel | MessagePassingModel,
        mean: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        if not scale > 0:
            msg = f"scale={scale} must be positive: equal labels leave nothing to learn."
            raise TrainingError(msg)
        super().__init__(encoder)
        self.mean, self.scale = mean, scale

    def forward(self, batch: Batch) -> Float[Tensor, " terms"]:
        """The sum over graphs."""
        errors = (self._predicted(graph_of(batch)) - batch.labels).abs() / self.scale
        return (errors * batch.weights).sum()[None]

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """Errors with and without the structure of the graph."""
        graph = graph_of(batch)
        predicted = self._predicted(graph)
        without = self._predicted(graph.without_structure())
        return {
            "mae": (predicted - batch.labels).abs(),
            "mae_without_structure": (without - batch.labels).abs(),
            "prediction": predicted,
        }

    def _predicted(self, graph: GraphBatch) -> Float[Tensor, " b"]:
        return self.mean + self.scale * wide(self.encoder(graph))


def graph_of(batch: Batch) -> GraphBatch:
    """The graphs of a batch."""
    lacking = "Regress reads graphs, and this task gives none. Use a task of molecules."
    return given(batch.graph, lacking)
