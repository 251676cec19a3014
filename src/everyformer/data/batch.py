"""What a model is given: a draw names examples, a batch holds their tensors."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int, Integer, Num
from torch import Tensor

from everyformer.layers.graphs.batch import GraphBatch

FILLING = -1
"""The number of an example that only fills a batch: its weights are 0."""


class Draw(NamedTuple):
    """The examples of one part of an update or of an evaluation.

    Attributes:
        numbers: Of the examples in their split, on the device; `FILLING` for none.
        length: Tokens of every sequence, n: with it all shapes are known.
    """

    numbers: Int[Tensor, " b"]
    length: int


class Batch(NamedTuple):
    """Tensors on one device; None where a task has no use for them.

    Attributes:
        tokens: Token ids.
        labels: What is to be said, one row for each example.
        weights: How much each label counts; 0 for filling and for what is not scored.
        segments: Segment ids.
        padding: True for tokens that nobody sees.
        places: Positions of the tokens that the labels belong to, if not all have one.
        next_labels: Whether B follows A, for pairs of texts with a second label: 0 or 1.
        streams: Which stream of text each sequence goes on.
        fresh: True where a stream begins, with nothing before it.
        graph: Graphs, whose nodes are the tokens.
        target: What a decoder is given, the labels one place later.
    """

    tokens: Integer[Tensor, "b n"]
    labels: Num[Tensor, "b ..."]
    weights: Float[Tensor, "b ..."]
    segments: Int[Tensor, "b n"] | None = None
    padding: Bool[Tensor, "b n"] | None = None
    places: Int[Tensor, "b m"] | None = None
    next_labels: Int[Tensor, " b"] | None = None
    streams: Int[Tensor, " b"] | None = None
    fresh: Bool[Tensor, " b"] | None = None
    graph: GraphBatch | None = None
    target: Integer[Tensor, "b m"] | None = None
