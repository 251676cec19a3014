"""One word in different contexts, layer by layer, in a trained encoder (Section 6.3).

C contexts, texts of n tokens, and W words. Every word takes the place i of every context,
and q(w, c) is the state of that token after a layer. Nothing but the word, or nothing but
its context, differs between

    by_context   the mean over w and c < c'  of |q(w, c) - q(w, c')|
    by_word      the mean over c and w < w'  of |q(w, c) - q(w', c)|

so by_context is 0 as long as a token knows itself alone. Beside it the gap of Definition
5.1 over all tokens of all contexts: the least distance of two states, which is not 0 for a
contextual mapping. Distances are Euclidean for the means and, for the gap, the largest
difference of a coordinate, each divided by the largest state; they are measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.checks.contextual_gap import contextual_gap
from everyformer.errors import refuse
from everyformer.layers.models.encoder import Encoder


@dataclass(frozen=True)
class LayerContexts:
    """What one layer makes of a word in its contexts.

    Attributes:
        layer: 0 for the embeddings, then the number of the block.
        mixer: Of the block; "" for the embeddings.
        gap_sampled: The least distance of two tokens of the contexts.
        separating: Whether that is more than rounding.
        by_context_sampled: Mean distance of one word in two contexts.
        by_word_sampled: Mean distance of two words in one context.
    """

    layer: int
    mixer: str
    gap_sampled: float
    separating: bool
    by_context_sampled: float
    by_word_sampled: float

    @property
    def share_of_context(self) -> float:
        """by_context / (by_context + by_word): 0 for a fixed embedding of words."""
        total = self.by_context_sampled + self.by_word_sampled
        return self.by_context_sampled / total if total else 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self)) | {"share_of_context_sampled": self.share_of_context}


def word_contexts(
    encoder: Encoder,
    contexts: Int[Tensor, "count n"],
    words: Sequence[int],
    place: int | None = None,
) -> list[LayerContexts]:
    """Follow some words through the layers of an encoder, each in all contexts.

    The encoder runs in float64 and in evaluation mode, and is left as it was.

    Args:
        encoder: Trained, or not.
        contexts: Token ids of different texts of one length.
        words: Token ids to put into them.
        place: Where; the middle by default.

    Returns:
        One for the embeddings, and one for each block.

    Raises:
        InputError: If there are not two different words and two different contexts, or the
            place is not in the text.
    """
    place = contexts.shape[1] // 2 if place is None else place
    _check(contexts, words, place, encoder.config.vocab_size)
    kept, mode = next(encoder.parameters()).dtype, encoder.training
    encoder.double().eval()
    try:
        with torch.no_grad():
            filled = contexts.repeat(len(words), 1, 1)  # [w, c, n]
            filled[:, :, place] = torch.tensor(words)[:, None]
            own = [x[:, place] for x in _layers(encoder, filled.flatten(0, 1))]
            every = _layers(encoder, contexts)
    finally:
        encoder.to(kept).train(mode)
    sequences = contexts.double()[..., None]
    found: list[LayerContexts] = []
    for layer, (states, tokens) in enumerate(zip(every, own, strict=True)):
        gap = contextual_gap(lambda _, states=states: states, sequences)
        largest = float(states.abs().max()) or 1.0
        q = tokens.unflatten(0, (len(words), -1)) / float(tokens.norm(dim=-1).max())
        mixer = encoder.config.mixer_names[layer - 1] if layer else ""
        found.append(
            LayerContexts(
                layer,
                mixer,
                gap.gap_sampled / largest,
                gap.separating,
                _mean_distance(q),
                _mean_distance(q.transpose(0, 1)),
            )
        )
    return found


def _layers(encoder: Encoder, tokens: Int[Tensor, "b n"]) -> list[Float[Tensor, "b n d"]]:
    """The embeddings, and the states after each block."""
    states = [encoder.embedded(tokens)]
    for block in encoder.blocks:
        states.append(block(states[-1]))
    return states


def _mean_distance(q: Float[Tensor, "some many d"]) -> float:
    """Of two of many, the mean over some and all pairs."""
    return float(torch.stack([torch.pdist(one.contiguous()).mean() for one in q]).mean())


def _check(
    contexts: Int[Tensor, "count n"], words: Sequence[int], place: int, vocabulary: int
) -> None:
    count, n = contexts.shape
    wrong: list[str] = []
    if len(contexts.unique(dim=0)) < max(2, count):
        wrong.append(f"contexts holds {count} texts; give two or more, all different")
    if len(set(words)) < max(2, len(words)):
        wrong.append(f"words is {list(words)}; give two or more, all different")
    if not 0 <= place < n:
        wrong.append(f"place={place} is not in a text of {n} tokens")
    largest = max([*words, int(contexts.max()) if contexts.numel() else 0])
    if largest >= vocabulary:
        wrong.append(f"token {largest} is not one of the encoder's {vocabulary} tokens")
    refuse("Words cannot be followed through their contexts", wrong)
