"""What an encoder-decoder says: the best next token each time, or the best of some texts.

A text of m tokens, its end included, is compared with others by

    log p(text | source) / ((5 + m) / 6)^a

(Wu et al. 2016); a = 0 compares probabilities, and larger a prefers longer texts.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from everyformer.errors import InputError, refuse
from everyformer.layers.models.decoder import BlockCache
from everyformer.layers.models.encoder_decoder import EncoderDecoderModel

LOOK_EVERY = 8
"""Tokens between two questions to the device whether all texts have ended."""


class Texts(NamedTuple):
    """The best texts for each source, the best first.

    Attributes:
        tokens: Their tokens without the first; after its end a text has end tokens.
        scores: As above.
    """

    tokens: Int[Tensor, "b k m"]
    scores: Float[Tensor, "b k"]


class _Reading(NamedTuple):
    """A source that was read, and what is known of the target so far."""

    context: Float[Tensor, "b m d"]
    padding: Bool[Tensor, "b m"] | None
    caches: list[BlockCache] | None


@torch.no_grad()
def greedy(
    model: EncoderDecoderModel,
    source: Int[Tensor, "b m"],
    *,
    begin: int,
    end: int,
    padding: Bool[Tensor, "b m"] | None = None,
    limit: int | None = None,
    words: int | None = None,
    cached: bool = True,
) -> Int[Tensor, "b n"]:
    """The most probable next token, again and again, until all texts have ended.

    Args:
        model: In evaluation mode.
        source: Token ids.
        begin: The token before the first.
        end: The token at the end.
        padding: True for tokens of the source that are padding.
        limit: Tokens of a text at most, its end included; max_len by default.
        words: Only ids below this are said; all by default.
        cached: Whether keys are kept; without, every token costs as much as a whole text.

    Returns:
        The tokens without `begin`; after its end a text has end tokens.

    Raises:
        InputError: If limit is beyond max_len, or the model is in training mode.
    """
    limit = _checked(model, source, padding, limit, begin, end, words)
    read = _read(model, source, padding, cached, 1)
    target = source.new_full((len(source), limit + 1), end)
    target[:, 0] = begin
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    n = 0
    for n in range(1, limit + 1):
        logits = model.next_logits(target[:, :n], *read)[:, :words]
        said = logits.argmax(-1).masked_fill(ended, end)
        target[:, n] = said
        ended = ended | (said == end)
        if (n % LOOK_EVERY == 0 or n == limit) and bool(ended.all()):
            break
    return _up_to_last_end(target[:, 1 : n + 1], end)


@torch.no_grad()
def beam_search(
    model: EncoderDecoderModel,
    source: Int[Tensor, "b m"],
    *,
    begin: int,
    end: int,
    beams: int,
    padding: Bool[Tensor, "b m"] | None = None,
    limit: int | None = None,
    length_penalty: float = 1.0,
    words: int | None = None,
    cached: bool = True,
) -> Texts:
    """The best texts among those that some beginnings, the best of each length, lead to.

    Texts that have ended keep their place among the beams as long as no other beginning has
    a higher score. A text that reaches the limit counts as it is. One beam is `greedy`.

    Args:
        model: In evaluation mode.
        source: Token ids.
        begin: The token before the first.
        end: The token at the end.
        beams: Texts that are followed at the same time.
        padding: True for tokens of the source that are padding.
        limit: Tokens of a text at most, its end included; max_len by default.
        length_penalty: a, 0 or more.
        words: Only ids below this are said; all by default.
        cached: Whether keys are kept.

    Raises:
        InputError: If limit is beyond max_len, a is negative, there is no beam, or the
            model is in training mode.
    """
    limit = _checked(model, source, padding, limit, begin, end, words)
    number = isinstance(length_penalty, int | float) and 0 <= length_penalty < math.inf
    if not (_is_whole(beams) and beams >= 1 and number):
        msg = (
            f"beams={beams!r} and length_penalty={length_penalty!r}: give at least one "
            "beam, and a penalty of 0 or more."
        )
        raise InputError(msg)
    batch, device = len(source), source.device
    read = _read(model, source, padding, cached, beams)
    target = source.new_full((batch * beams, limit + 1), end)
    target[:, 0] = begin
    # One beginning at first: the other beams are empty, and no text comes from them.
    total = torch.full((batch, beams), -math.inf, device=device, dtype=read.context.dtype)
    total[:, 0] = 0.0
    length = torch.zeros_like(total)
    ended = torch.zeros_like(total, dtype=torch.bool)
    first = beams * torch.arange(batch, device=device)[:, None]
    scores, n = total, 0
    for n in range(1, limit + 1):
        logits = model.next_logits(target[:, :n], *read)[:, :words]
        count = logits.shape[-1]
        steps = functional.log_softmax(logits, -1).view(batch, beams, count)
        stays = steps.new_full((count,), -math.inf)
        stays[end] = 0.0
        found = total[..., None] + torch.where(ended[..., None], stays, steps)
        length = length + (~ended).to(length.dtype)
        compared = found / penalty(length, length_penalty)[..., None]
        scores, places = compared.flatten(1).topk(beams, 1)
        beam, said = places // count, places % count
        total = found.flatten(1).gather(1, places)
        length, ended = length.gather(1, beam), ended.gather(1, beam) | (said == end)
        rows = (first + beam).flatten()
        target = target[rows]
        target[:, n] = said.flatten()
        for cache in read.caches or ():
            cache.own.reorder(rows)
        if (n % LOOK_EVERY == 0 or n == limit) and bool(ended.all()):
            break
    tokens = _up_to_last_end(target[:, 1 : n + 1], end)
    return Texts(tokens.view(batch, beams, tokens.shape[1]), scores)


def penalty(length: Float[Tensor, "..."], a: float) -> Float[Tensor, "..."]:
    """((5 + m) / 6)^a."""
    return ((5.0 + length) / 6.0) ** a


def _read(
    model: EncoderDecoderModel,
    source: Int[Tensor, "b m"],
    padding: Bool[Tensor, "b m"] | None,
    cached: bool,
    copies: int,
) -> _Reading:
    """Read the source once; each row is then there so many times.

    A target that hears a part of the source by its place may be longer than the source,
    which is filled up for that.
    """
    more = model.config.max_len - source.shape[1]
    if model.sparse_source and more > 0:
        padding = torch.zeros_like(source, dtype=torch.bool) if padding is None else padding
        source = functional.pad(source, (0, more))
        padding = functional.pad(padding, (0, more), value=True)
    context = model.encoded(source, padding)
    if copies > 1:
        context = context.repeat_interleave(copies, 0)
        padding = None if padding is None else padding.repeat_interleave(copies, 0)
    return _Reading(context, padding, model.decoder.caches() if cached else None)


def _up_to_last_end(tokens: Int[Tensor, "b n"], end: int) -> Int[Tensor, "b m"]:
    """Without columns in which every text has ended before."""
    going_on = (tokens == end).cumsum(1) == 0
    longest = int(going_on.sum(1).max()) + 1 if len(tokens) else 0
    return tokens[:, :longest]


def _is_whole(number: object) -> bool:
    """Whether this is a number of things, or an id."""
    return isinstance(number, int) and not isinstance(number, bool)


def _checked(
    model: EncoderDecoderModel,
    source: Tensor,
    padding: Tensor | None,
    limit: int | None,
    begin: int,
    end: int,
    words: int | None,
) -> int:
    """The limit, if all fits.

    Raises:
        InputError: With all reasons.
    """
    most, size = model.config.max_len, model.config.vocab_size
    limit = most if limit is None else limit
    wrong = _wrong_source(source, padding)
    if not (_is_whole(limit) and 1 <= limit <= most):
        wrong.append(
            f"limit={limit!r} tokens, but the decoder has positions for max_len={most}; "
            f"give 1 to {most}, or make a model with a larger max_len"
        )
    said = size if words is None else words
    whole = all(_is_whole(number) for number in (said, begin, end))
    if not (whole and 1 <= said <= size and 0 <= end < said and 0 <= begin < size):
        wrong.append(
            f"begin={begin}, end={end} and words={words} are not ids of the {size} tokens"
        )
    if model.training:
        wrong.append("the model is in training mode, and dropout is random; call eval()")
    refuse("Nothing can be decoded", wrong)
    return limit


def _wrong_source(source: Tensor, padding: Tensor | None) -> list[str]:
    """What is wrong with a source and its padding, before anything is added to them."""
    wrong = [
        f"{name} is of type {type(given).__name__}; give a tensor"
        for name, given in (("the source", source), ("padding", padding))
        if given is not None and not isinstance(given, Tensor)
    ]
    if wrong:
        return wrong
    if source.dim() != 2 or source.dtype not in (torch.int32, torch.int64):
        wrong.append(
            f"the source has shape {tuple(source.shape)} and dtype {source.dtype}; give "
            "token ids (b, m), a row for each text, int64"
        )
    if padding is not None and (
        padding.shape != source.shape or padding.dtype != torch.bool
    ):
        wrong.append(
            f"padding has shape {tuple(padding.shape)} and dtype {padding.dtype}; give one "
            f"bool per token of the source, {tuple(source.shape)}"
        )
    return wrong
