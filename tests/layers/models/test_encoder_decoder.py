"""The encoder-decoder: what it may hear, and what it says with and without a cache."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from everyformer import patterns
from everyformer.errors import InputError
from everyformer.layers import RelativeAttention
from everyformer.layers.masked_attention import MaskedAttention
from everyformer.layers.models.decoding import beam_search, greedy, penalty
from everyformer.layers.models.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderModel,
    sparse_mixers,
)
from everyformer.layers.torch_options import TorchOptions

N = 12
BEGIN, END = 1, 2
DOUBLE: TorchOptions = {"device": None, "dtype": torch.float64}


def config(words: int = 9) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        vocab_size=words, max_len=N, dim=8, encoder_layers=2, decoder_layers=2, heads=2,
        ffn=16,
    )  # fmt: skip


def model(arm: str = "dense", cross: bool = False, words: int = 9) -> EncoderDecoderModel:
    """With weights that are not small, so that texts end and differ."""
    own = config(words)
    mixers: dict[str, Any] = {}
    if arm != "dense":
        ahead = getattr(patterns, arm)(N, 3)
        both = ahead.causal_part().first if arm == "random" else ahead.causal_part()
        way = "sequential" if arm == "random" else "union"
        if arm == "fixed":
            mixers["decoder_mixers"] = [
                MaskedAttention(8, 2, both, configuration="multihead", dtype=torch.float64)
                for _ in range(2)
            ]
            both = None
        mixers["encoder_mixers"] = sparse_mixers(own, 2, ahead, way, DOUBLE)
        if both is not None:
            mixers["decoder_mixers"] = sparse_mixers(own, 2, both, way, DOUBLE)
    if cross:
        hears = patterns.window(N, 2)
        mixers["cross_mixers"] = sparse_mixers(own, 2, hears, "union", DOUBLE)
    made = EncoderDecoderModel(own, **mixers, dtype=torch.float64)
    torch.manual_seed(11)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


def source(batch: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    tokens = torch.randint(3, 9, (batch, N))
    padding = torch.arange(N) >= torch.tensor([N, 7, 4, 9, 5])[:batch, None]
    return tokens, padding


ARMS = [
    ("dense", False), ("strided", False), ("star", True), ("random", False),
    ("fixed", False),
]  # fmt: skip


@pytest.mark.parametrize(("arm", "cross"), ARMS)
def test_a_cache_changes_no_token(arm: str, cross: bool) -> None:
    made, (tokens, padding) = model(arm, cross), source(5)
    texts = [
        greedy(made, tokens, begin=BEGIN, end=END, padding=padding, cached=cached)
        for cached in (True, False)
    ]
    assert torch.equal(*texts)
    assert len({tuple(row) for row in texts[0].tolist()}) > 2
    found = [
        beam_search(
            made, tokens, begin=BEGIN, end=END, padding=padding, beams=3, cached=cached
        )
        for cached in (True, False)
    ]
    assert torch.equal(found[0].tokens, found[1].tokens)
    torch.testing.assert_close(found[0].scores, found[1].scores, rtol=1e-12, atol=1e-12)
    one = beam_search(made, tokens, begin=BEGIN, end=END, padding=padding, beams=1)
    assert torch.equal(one.tokens[:, 0], texts[0])


@pytest.mark.parametrize(("arm", "cross"), ARMS)
def test_nobody_hears_later_tokens_or_padding(arm: str, cross: bool) -> None:
    made, (tokens, padding) = model(arm, cross), source()
    target = torch.randint(0, 9, (3, N))
    logits = made(tokens, target, padding=padding)
    for place in (1, 6, N - 1):
        changed = target.clone()
        changed[:, place:] = (changed[:, place:] + 1) % 9
        other = made(tokens, changed, padding=padding)
        assert torch.equal(other[:, :place], logits[:, :place])
        assert not torch.allclose(other[:, place:], logits[:, place:])
    hidden = torch.where(padding, (tokens + 4) % 9, tokens)
    torch.testing.assert_close(made(hidden, target, padding=padding), logits)
    assert not torch.allclose(made(hidden, target), logits), "without the mask it counts"
    if arm == "dense":
        short = made(tokens[2:, :4], target[2:, :5])
        torch.testing.assert_close(short, logits[2:, :5], rtol=1e-12, atol=1e-12)


def test_beam_search_is_exhaustive_search_where_all_beginnings_fit() -> None:
    """Four words, texts of up to four tokens: the best of all 1 + 3 + 9 + 27 * 4 texts."""
    made, (tokens, padding) = model(words=4), source(2)
    tokens = tokens % 4
    others = [word for word in range(4) if word != END]
    texts = [
        (*words, END) for m in range(4) for words in itertools.product(others, repeat=m)
    ]
    texts += list(itertools.product(others, repeat=4))
    filled = torch.tensor([[BEGIN, *text, *[END] * (4 - len(text))] for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    for row in range(2):
        read, hidden = (x[row].expand(len(texts), -1) for x in (tokens, padding))
        with torch.no_grad():
            logits = made(read, filled[:, :-1], padding=hidden)
        each = logits.log_softmax(-1).gather(2, filled[:, 1:, None])[..., 0]
        each = each.masked_fill(torch.arange(4) >= lengths[:, None], 0.0)
        for a in (0.0, 1.0, 3.0):
            found = beam_search(
                made, tokens, begin=BEGIN, end=END, padding=padding, beams=121, limit=4,
                length_penalty=a,
            )  # fmt: skip
            scores = each.sum(1) / penalty(lengths.double(), a)
            best = texts[int(scores.argmax())]
            said = found.tokens[row, 0].tolist()
            assert said[: len(best)] == list(best)
            assert set(said[len(best) :]) <= {END}
            top = scores.sort(descending=True).values[:100]
            torch.testing.assert_close(found.scores[row, :100], top)


def _fails(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.unhooked
def test_a_call_that_fails_half_way_changes_no_cache() -> None:
    """The first block keeps its tokens, then its attention to the source is refused."""
    made, (tokens, padding) = model(), source()
    target = torch.randint(0, 9, (3, 8))
    with torch.no_grad():
        whole = made(tokens, target, padding=padding)
        context, caches = made.encoded(tokens, padding), made.decoder.caches()
        with pytest.raises(InputError, match="give one bool per token"):
            made.decoder(target[:, :3], context, padding[:, 1:], caches)
        with pytest.raises(InputError, match="context has shape"):
            made.decoder(target[:, :3], context[..., 1:], None, caches)
        held = [each.length for one in caches for each in (one.own, one.source)]
        assert held == [0, 0, 0, 0]
        first = made.decoder(target[:, :3], context, padding, caches)
        last = made.decoder.blocks[1].register_forward_pre_hook(_fails)
        with pytest.raises(ZeroDivisionError):
            made.decoder(target[:, 3:5], context, padding, caches)
        last.remove()
        rest = made.decoder(target[:, 3:], context, padding, caches)
    torch.testing.assert_close(made.head(torch.cat([first, rest], 1)), whole)


def test_only_words_are_said_and_all_texts_end_within_the_limit() -> None:
    made, (tokens, padding) = model(), source(5)
    said = greedy(made, tokens, begin=BEGIN, end=END, padding=padding, words=4, limit=5)
    assert int(said.max()) < 4
    assert said.shape[1] <= 5
    after = (said == END).cumsum(1) > 1
    assert (said[after] == END).all()


def test_what_cannot_be_decoded_is_refused() -> None:
    made, (tokens, _) = model("strided"), source()
    for limit in (0, N + 1):
        with pytest.raises(InputError, match=rf"limit={limit} tokens.*max_len=12"):
            greedy(made, tokens, begin=BEGIN, end=END, limit=limit)
    with pytest.raises(InputError, match="end=9 and words=None are not ids"):
        greedy(made, tokens, begin=BEGIN, end=9)
    with pytest.raises(InputError, match=r"beams=0.*at least one"):
        beam_search(made, tokens, begin=BEGIN, end=END, beams=0)
    with pytest.raises(InputError, match=r"training mode.*eval"):
        greedy(made.train(), tokens, begin=BEGIN, end=END)
    made.eval()
    context, caches = made.encoded(tokens), made.decoder.caches()
    with torch.no_grad():
        made.decoder(tokens, context, caches=caches)
        with pytest.raises(InputError, match=r"12 tokens before and 1 tokens.*max_len=12"):
            made.decoder(tokens[:, :1], context, caches=caches)
    with pytest.raises(InputError, match=r"has 13 tokens.*max_len=12"):
        made.decoder(torch.zeros(3, 13, dtype=torch.long), context)
    with pytest.raises(InputError, match=r"sequence has 13 tokens"):
        made.encoded(torch.zeros(3, 13, dtype=torch.long))
    with pytest.raises(InputError, match=r"there are 7 tokens.*for\s+n=12"):
        made.encoded(tokens[:, :7])


@pytest.mark.unhooked
def test_numbers_and_tensors_of_another_type_are_refused() -> None:
    made: Any = model(cross=True)
    tokens, padding = source()
    given: dict[str, Any] = {"limit": 2.5, "begin": 1.5, "end": None, "words": True}
    for name, value in given.items():
        settings: dict[str, Any] = {"begin": BEGIN, "end": END, name: value}
        with pytest.raises(InputError, match=f"{name}={value}"):
            greedy(made, tokens, **settings)
    for given in ({"beams": 2.0}, {"beams": "2"}, {"beams": 2, "length_penalty": "a"}):
        with pytest.raises(InputError, match="at least one beam"):
            beam_search(made, tokens, begin=BEGIN, end=END, **given)
    wrong: Any
    for wrong in (tokens[0], tokens.double(), tokens[None], tokens.tolist()):
        with pytest.raises(InputError, match=r"the source (has shape|is of type).*give"):
            greedy(made, wrong, begin=BEGIN, end=END)
    short = tokens[:, :7]  # it is filled up; the error speaks of what was given
    for wrong in (padding[:, :6], padding[:, :7].long(), padding.tolist()):
        with pytest.raises(InputError, match=r"padding (has shape \(3, [67]\)|is of type)"):
            greedy(made, short, begin=BEGIN, end=END, padding=wrong)


@pytest.mark.parametrize(("arm", "cross"), ARMS)
def test_no_source_at_all(arm: str, cross: bool) -> None:
    """As the last batch of a folder that is empty."""
    made, tokens = model(arm, cross), source()[0][:0]
    assert greedy(made, tokens, begin=BEGIN, end=END).shape == (0, 0)
    found = beam_search(made, tokens, begin=BEGIN, end=END, beams=3)
    assert found.tokens.shape == (0, 3, 0)
    assert found.scores.shape == (0, 3)


def _parted(n: int) -> patterns.Pattern:
    """Sets whose tokens in a row are 1, 1, 2, 3, .. always; where sets end is not."""
    k = np.arange(n)
    listeners = np.append(k, 1 if n == N else 2)
    heard = np.append(k, 0 if n == N else 1)
    heard[1] = 1 if n == N else 0
    rows = patterns.Rows.of_pairs(n, listeners, heard)
    return patterns.Pattern("parted", (patterns.Gathered(n, rows),))


def test_mixers_that_hear_the_future_are_refused() -> None:
    own = config()
    with pytest.raises(InputError, match=r"Block 0.*RelativeAttention.*hear later"):
        EncoderDecoderModel(own, decoder_mixers=[RelativeAttention(8, 2) for _ in range(2)])
    ahead = patterns.strided(N, 3)
    with pytest.raises(InputError, match=r"pattern \(Union\).*causal_part"):
        EncoderDecoderModel(own, decoder_mixers=sparse_mixers(own, 2, ahead, "union"))
    relay = sparse_mixers(own, 2, lambda n: patterns.star(n, 2).causal_part(), "union")
    with pytest.raises(InputError, match=r"made for .* tokens some hear others"):
        EncoderDecoderModel(own, decoder_mixers=relay)
    parted = sparse_mixers(own, 2, _parted, "union")  # {1}, {1, 2}, {3}; {1}, {1}, {2, 3}
    with pytest.raises(InputError, match=r"made for .* tokens some hear others"):
        EncoderDecoderModel(own, decoder_mixers=parted)
    short = sparse_mixers(own, 2, patterns.strided(9, 3).causal_part(), "union")
    with pytest.raises(InputError, match=r"patterns?.* is for\s+n=9"):
        EncoderDecoderModel(own, decoder_mixers=short)
    one = [RelativeAttention(8, 2, causal=True)]
    with pytest.raises(InputError, match="decoder_mixers has 1 modules"):
        EncoderDecoderModel(own, decoder_mixers=one)


def test_a_source_that_is_filled_up_is_heard_as_in_training() -> None:
    """Decoding fills the source up: a pattern made anew for that length is refused."""
    own = config()
    for made in (patterns.star, patterns.recipe("random", keys=2)):
        across = sparse_mixers(own, 2, made, "union")
        with pytest.raises(
            InputError, match=r"Block 0.*to the source: .* some hear others"
        ):
            EncoderDecoderModel(own, cross_mixers=across)
    for made in (patterns.star(N, 2).first, patterns.recipe("window", half_width=2)):
        across = sparse_mixers(own, 2, made, "union", DOUBLE)
        kept = EncoderDecoderModel(own, cross_mixers=across, dtype=torch.float64).eval()
        tokens, target = torch.randint(3, 9, (2, 7)), torch.randint(3, 9, (2, 6))
        filled = torch.nn.functional.pad(tokens, (0, N - 7))
        hidden = torch.arange(N).expand(2, N) >= 7
        found = kept(filled, target, padding=hidden)
        torch.testing.assert_close(kept(tokens, target), found, rtol=1e-12, atol=1e-12)


def test_lengths_that_a_recipe_refuses_are_passed_over() -> None:
    """Buckets are multiples of a width; of the others there is nothing to compare."""
    own = config()
    made = patterns.recipe("fixed", width=4, causal=True, multiple_of=4)
    mixers = sparse_mixers(own, 2, made, "union")
    tokens = torch.randint(3, 9, (2, 8))
    assert EncoderDecoderModel(own, decoder_mixers=mixers)(tokens, tokens).shape[1] == 8
    relay = patterns.recipe("star", width=2, causal=True, multiple_of=4)
    with pytest.raises(InputError, match="made for 8 tokens some hear others"):
        EncoderDecoderModel(own, decoder_mixers=sparse_mixers(own, 2, relay, "union"))


def test_one_embedding_serves_all_and_arms_begin_alike() -> None:
    dense = EncoderDecoderModel(config())
    causal = patterns.strided(N, 3).causal_part()
    sparse = EncoderDecoderModel(
        config(), decoder_mixers=sparse_mixers(config(), 2, causal, "union")
    )
    for one in (dense, sparse):
        torch.manual_seed(0)
        one.reset_parameters()
    names = [name for name, _ in dense.named_parameters()]
    assert len([name for name in names if "tokens" in name or "head" in name]) == 1
    assert dense.head.weight is dense.encoder.tokens.weight
    for (name, one), other in zip(
        dense.named_parameters(), sparse.parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    assert [type(one).__name__ for one in dense.blocks] == [
        *["EncoderBlock"] * 2, *["DecoderBlock"] * 2,
    ]  # fmt: skip
    kinds = [type(one).__name__ for one in sparse.blocks]
    assert kinds[2:] == ["AddedFeedForward"] * 2, "no pattern is compiled"
    assert sorted(dense.state_dict()) == sorted(sparse.state_dict())


def test_gains_of_a_decoder_begin_at_one() -> None:
    own = config()
    mixers = [
        RelativeAttention(8, 2, gain=True, causal=True, max_len=N)
        for _ in range(own.decoder_layers)
    ]
    made = EncoderDecoderModel(own, decoder_mixers=mixers)
    tables = [p for name, p in made.named_parameters() if name.endswith("gain.table")]
    assert len(tables) == own.decoder_layers
    assert all(bool((table == 1).all()) for table in tables)
