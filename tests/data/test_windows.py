"""Windows and masks: exact counts, right shares, the same twice, fixed for evaluation."""

import functools
import math

import numpy as np
import pytest
import torch
from tests.data.test_pack import HEADER

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.masking import chosen, masked
from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import Pack, new_pack
from everyformer.data.randomness import mixed
from everyformer.data.windows import MaskedWindows
from everyformer.errors import FileFormatError, InputError

CPU = torch.device("cpu")
PAD, UNK, CLS, SEP, MASK = range(5)


@functools.cache
def counting(train: int = 60_000, held: int = 4000) -> Pack:
    """A text in which every token says where it stands, modulo 59,995, as 5, 6, ..."""
    header = {**HEADER, "tokeniser": {**HEADER["tokeniser"], "vocabulary": 60_000}}
    sizes = {"train": train, "validation": held, "test": held}
    arrays = {k: (np.arange(n) % 59_995 + 5).astype(np.uint16) for k, n in sizes.items()}
    return new_pack(header, arrays)


def unmasked(batch: Batch) -> torch.Tensor:
    assert batch.places is not None
    return batch.tokens.scatter(1, batch.places, batch.labels)


def text_of(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens without [CLS] and [SEP], of windows that are always full."""
    keep = (tokens != CLS) & (tokens != SEP)
    return tokens[keep].reshape(len(tokens), -1)


@pytest.mark.parametrize("n", [16, 33, 128, 256])
def test_exactly_so_many_are_hidden_and_never_specials(n: int) -> None:
    task = MaskedWindows(counting(), n, 0, evaluated=50)
    batch = task.batch("train", task.draw(3, 64, 0, 1, CPU))
    m = round(0.15 * n)
    assert batch.places is not None
    assert batch.places.shape == batch.labels.shape == batch.weights.shape == (64, m)
    assert (batch.places[:, 1:] > batch.places[:, :-1]).all(), "all different"
    assert (batch.labels > MASK).all()
    assert (batch.tokens[:, 0] == CLS).all()
    assert (batch.tokens[:, -1] == SEP).all()
    assert ((batch.tokens == SEP).sum(1) == 2).all()
    assert (batch.weights == 1).all()
    assert batch.segments is not None
    ends = (batch.tokens == SEP).int().argmax(1)
    expected = (torch.arange(n) > ends[:, None]).long()
    assert torch.equal(batch.segments, expected)
    assert ((ends - 1 >= n // 4) & (ends - 1 <= 3 * n // 4)).all()


def test_shares_of_what_stands_in_their_place() -> None:
    """80 / 10 / 10 within three standard errors of a million, and uniform places."""
    rows, n, m = 16_000, 80, 64
    tokens = torch.full((rows, n), 7)
    allowed = torch.ones(rows, n, dtype=torch.bool)
    words = torch.arange(5, 1005)
    keys = mixed(1, torch.arange(rows))
    found = masked(tokens, allowed, keys, m, mask=MASK, words=words)
    shown = found.tokens.gather(1, found.places)
    count = shown.numel()
    assert count > 1_000_000
    hits = 0.1 / 1000  # of the random word
    for share, p in (
        ((shown == MASK).sum() / count, 0.8),
        ((shown == 7).sum() / count, 0.1 + hits),
        (((shown != MASK) & (shown != 7)).sum() / count, 0.1 - hits),
    ):
        assert abs(float(share) - p) < 3 * math.sqrt(p * (1 - p) / count)
    random = shown[(shown != MASK) & (shown != 7)]
    assert random.min() == 5
    assert random.max() == 1004
    few = chosen(allowed, keys, 8).flatten()
    counts = torch.bincount(few, minlength=n).double()
    expected = rows * 8 / n
    assert float(((counts - expected) ** 2 / expected).sum()) < 135  # 79 degrees: 1e-4


def test_a_model_that_repeats_its_input() -> None:
    """It is right where a token was left: 10 %, and where the random word hit."""
    task = MaskedWindows(excerpt("enwiki-wp"), 128, 0, evaluated=900)
    right = total = 0
    for draw in task.evaluation("validation", 100, 0, 1, CPU):
        batch = task.batch("validation", draw)
        assert batch.places is not None
        right += int((batch.tokens.gather(1, batch.places) == batch.labels).sum())
        total += batch.labels.numel()
    p = 0.1 + 0.1 / (excerpt("enwiki-wp").vocabulary - 5)
    assert total == 900 * 19
    assert abs(right / total - p) < 4 * math.sqrt(p * (1 - p) / total)


def test_an_epoch_reads_every_window_once() -> None:
    """Windows tile the text from a hashed shift on; two processes read what one reads."""
    task = MaskedWindows(counting(), 67, 1, evaluated=10, next_sentence=False)
    count = task.windows(67)
    assert count == (60_000 - 64 + 1) // 64
    for epoch in range(2):
        numbers = torch.arange(epoch * count, (epoch + 1) * count)
        text = text_of(unmasked(task.batch("train", Draw(numbers, 67))))
        starts = text[:, 0].sort().values
        assert (text[:, 1:] - text[:, :-1] == 1).sum() >= text[:, 1:].numel() - 1
        assert (starts[1:] - starts[:-1] == 64).all()
        assert 5 <= starts[0] < 69
    whole = [task.draw(step, 8, 0, 1, CPU) for step in range(5)]
    parts = [task.draw(step, 8, part, 2, CPU) for step in range(5) for part in range(2)]
    read = torch.cat([draw.numbers for draw in parts])
    assert torch.equal(read, torch.cat([draw.numbers for draw in whole]))


def test_the_same_twice_and_another_in_another_epoch() -> None:
    task, again = (MaskedWindows(counting(), 64, 5, evaluated=10) for _ in range(2))
    count = task.windows(64)
    other = MaskedWindows(counting(), 64, 6, evaluated=10)
    numbers = torch.arange(count)
    first, same, later = (
        one.batch("train", Draw(numbers + shift, 64))
        for one, shift in ((task, 0), (again, 0), (task, count))
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(first, same, strict=True)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    )
    assert not torch.equal(first.tokens, later.tokens)
    assert not torch.equal(first.tokens, other.batch("train", Draw(numbers, 64)).tokens)
    alone = task.batch("train", Draw(numbers[70:71], 64))
    assert torch.equal(alone.tokens[0], first.tokens[70])


def test_masks_of_an_evaluation_depend_on_nothing() -> None:
    """Not on the seed, nor on how many are read at once; filling has no weight."""
    tasks = [MaskedWindows(counting(), 64, seed, evaluated=50) for seed in (0, 9)]
    read: list[torch.Tensor] = []
    for task, size, parts in ((tasks[0], 7, 1), (tasks[1], 16, 2)):
        draws = [list(task.evaluation("test", size, k, parts, CPU)) for k in range(parts)]
        assert len({len(own) for own in draws}) == 1
        batches = [(d, task.batch("test", d)) for own in draws for d in own]
        numbers = torch.cat([draw.numbers for draw, _ in batches])
        tokens = torch.cat([batch.tokens for _, batch in batches])
        weights = torch.cat([batch.weights for _, batch in batches])
        assert torch.equal((weights == 1).all(1), numbers != FILLING)
        assert torch.equal((weights == 0).all(1), numbers == FILLING)
        real = numbers != FILLING
        assert numbers[real].sort().values.tolist() == list(range(50))
        read.append(tokens[real][numbers[real].argsort()])
    assert torch.equal(*read)
    numbers = np.array([2, 0, 1])
    scores = tasks[0].judged("test", {"nats": numbers * 10.0}, numbers)
    assert scores["nats"].tolist() == [0, 10, 20]


def test_b_follows_or_comes_from_elsewhere() -> None:
    task = MaskedWindows(counting(), 64, 2, evaluated=10)
    batch = task.batch("train", Draw(torch.arange(1800), 64))
    text, labels = text_of(unmasked(batch)), batch.next_labels
    assert labels is not None
    assert 0.46 < float(labels.float().mean()) < 0.54
    cut = (batch.tokens == SEP).int().argmax(1) - 1
    rows = torch.arange(len(text))
    jump = text[rows, cut] - text[rows, cut - 1]
    assert torch.equal(jump == 1, labels == 1)
    first, second = text[:, 0], text[rows, cut]
    away = labels == 0
    apart = second[away] - first[away]
    assert ((apart >= 61) | (apart <= -61)).all(), "no token of the window is read twice"
    assert MaskedWindows(counting(), 64, 2, next_sentence=False).batch(
        "train", Draw(torch.arange(4), 64)
    ).next_labels is None  # fmt: skip


def test_another_b_even_where_the_text_is_short() -> None:
    task = MaskedWindows(counting(300, 256), 64, 0, evaluated=1000)
    for split in ("validation", "test"):
        batch = task.batch(split, Draw(torch.arange(1000), 64))
        text = text_of(unmasked(batch)) - 5
        assert text.min() >= 0
        assert text.max() < 256
        assert (text.sort(1).values.diff(dim=1) > 0).all(), "no token is read twice"


def test_longer_windows_at_the_end() -> None:
    task = MaskedWindows(counting(), 64, 0, evaluated=10, longer=(3, 128, 4))
    draws = [task.draw(step, 8, 1, 2, CPU) for step in range(5)]
    assert [draw.length for draw in draws] == [64, 64, 64, 128, 128]
    assert [draw.numbers.tolist() for draw in draws[2:]] == [
        [20, 21, 22, 23], [2, 3], [6, 7]
    ]  # fmt: skip
    assert task.batch("train", draws[4]).labels.shape == (2, 19)
    assert next(iter(task.evaluation("test", 10, 0, 1, CPU))).length == 64
    assert task.describe()["longer"] == [3, 128, 4]


def test_clusters_are_articles() -> None:
    pack = excerpt("enwiki-wp")
    clusters = MaskedWindows(pack, 64, 0, evaluated=100).clusters("test")
    assert len(clusters) == 100
    assert set(np.diff(clusters)) <= {0, 1}
    assert set(clusters) == set(range(24))


def test_what_leaves_no_windows() -> None:
    short = counting(300, 200)
    with pytest.raises(InputError, match="test text has 200 tokens, too few for"):
        MaskedWindows(short, 64, 0)
    with pytest.raises(InputError, match=r"windows of 8 tokens.*longer=.1, 8, 4") as told:
        MaskedWindows(counting(), 8, 0, masked_share=0.9, evaluated=0, longer=(1, 8, 4))
    assert "masked_share=0.9" in str(told.value)
    assert "evaluated=0" in str(told.value)
    with pytest.raises(FileFormatError, match="has no arrays train, validation, test"):
        MaskedWindows(excerpt("nli"), 64, 0)
    with pytest.raises(InputError, match="batch of 9 examples has no part 0 of 2 equal"):
        MaskedWindows(counting(), 64, 0).draw(0, 9, 0, 2, CPU)
