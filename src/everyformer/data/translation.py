"""Translation: a source and its target, in buckets of about as many tokens.

The source is its pieces and an end token; the decoder is given a begin token and the
pieces of the target, and its labels are these pieces and an end token. A batch is counted
in tokens, source and target and filling together: a bucket of length n has batches of
batch / 2n pairs, so that every update costs about the same.
"""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.data.batch import FILLING, Batch, Draw
from everyformer.data.buckets import Bucketed, Buckets
from everyformer.data.packs.bpe import BytePairs
from everyformer.data.packs.pack import Pack, needs
from everyformer.data.packs.reading import BEGIN, END, PAD
from everyformer.data.packs.translation import ARRAYS, NEWS
from everyformer.data.randomness import SPLITS, Split
from everyformer.data.resident import Resident, starts_of
from everyformer.data.task import IGNORED, Scores
from everyformer.errors import FileFormatError, InputError

LEFT_OUT = -1
"""The split of a pair that is too long."""


class TokenBuckets(Buckets):
    """Buckets whose batches have about as many tokens each, whatever their length."""

    def examples_of(self, length: int, batch: int) -> int:
        """Pairs of a batch of that length."""
        return batch // (2 * length)

    def check(self, batch: int, part: int, parts: int) -> None:
        """Refuse a batch that does not hold one pair of the longest bucket.

        Raises:
            InputError: If so.
        """
        longest = max(self._members)
        if batch < 2 * longest:
            msg = (
                f"A batch of {batch} tokens, source and target together, holds no pair of "
                f"2 x {longest}. Give a batch of {2 * longest} or more."
            )
            raise InputError(msg)


class Translations(Bucketed):
    """The pairs of a pack of translations; a batch counts tokens.

    Args:
        pack: Of translations.
        seed: Of the order of training.
        lengths: Of the buckets; pairs that are longer, with an end token, are left out.
        evaluated: Pairs of the test set that are scored, the first of it; all by default.

    Raises:
        FileFormatError: If the pack is of another kind, its vocabulary is not the one of
            its header, its arrays do not fit together, or a pair is empty.
    """

    task = "translations"
    settings = ("seed", "lengths", "evaluated")

    def __init__(
        self,
        pack: Pack,
        seed: int,
        *,
        lengths: tuple[int, ...],
        evaluated: int | None = None,
    ) -> None:
        needs(pack, *ARRAYS, tokens=("tokens",))
        if {PAD, BEGIN, END} != set(pack.specials):
            msg = (
                f"The pack {pack.name!r} was made with another tokeniser: its special "
                f"tokens are {', '.join(pack.specials)}, not {PAD}, {BEGIN}, {END}. Make "
                "a pack of translations."
            )
            raise FileFormatError(msg)
        self.pack, self.seed, self.lengths = pack, seed, lengths
        self.evaluated = evaluated
        digest = pack.header["tokeniser"]["sha256"]
        self.pieces = BytePairs.from_array(pack.arrays["vocabulary"], digest)
        if len(self.pieces.pieces) != pack.vocabulary:
            msg = (
                f"The vocabulary of the pack {pack.name!r} has {len(self.pieces.pieces)} "
                f"pieces, its header says {pack.vocabulary}. Make it anew."
            )
            raise FileFormatError(msg)
        arrays = {name: pack.arrays[name].astype(np.int64) for name in ARRAYS[:-1]}
        _check(pack.name, arrays)
        a, b = arrays["sources"], arrays["targets"]
        first = starts_of(a + b)
        self._columns = np.stack([first, a, first + a, b])
        longest = np.maximum(a, b) + 1
        self._splits = np.where(longest <= lengths[-1], arrays["splits"], LEFT_OUT)
        self._members = {name: self._members_of(k) for k, name in enumerate(SPLITS)}
        self.news = self._members_of(NEWS)
        self.buckets = {
            split: TokenBuckets(longest[self._members[split]], lengths, seed)
            for split in SPLITS
        }
        held = {split: self._columns[:, self._members[split]] for split in SPLITS}
        self._held = Resident({"text": pack.arrays["tokens"], **held})

    def batch(self, split: Split, draw: Draw) -> Batch:
        """Sources, what the decoder is given, labels (b, n) and their weights."""
        held = self._held.on(draw.numbers.device)
        spans = held[split][:, draw.numbers.clamp(min=0)]
        return self._made(held["text"], spans, draw.numbers, draw.length)

    def pairs(self, numbers: np.ndarray, length: int, device: torch.device) -> Batch:
        """The pairs of these numbers in the pack, whatever their split."""
        spans = torch.from_numpy(self._columns[:, numbers]).to(device)
        text = self._held.on(device)["text"]
        return self._made(text, spans, torch.from_numpy(numbers).to(device), length)

    def texts(self, numbers: np.ndarray) -> list[str]:
        """The targets of pairs of the pack, as they were written."""
        tokens = self.pack.arrays["tokens"]
        starts, sizes = self._columns[2:, numbers]
        spans = zip(starts.tolist(), sizes.tolist(), strict=True)
        return [self.pieces.text(tokens[a : a + m].tolist()) for a, m in spans]

    def members(self, split: Split) -> np.ndarray:
        """Numbers in the pack of the pairs of a split."""
        return self._members[split]

    def sizes(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the sources and of the targets of a split, end tokens included."""
        own = self._members[split]
        return self._columns[1, own] + 1, self._columns[3, own] + 1

    def longest(self, numbers: np.ndarray) -> np.ndarray:
        """Tokens of the longer side of pairs of the pack, its end token included."""
        return np.maximum(*self._columns[1::2, numbers]) + 1

    def judged(self, split: Split, scores: Scores, numbers: np.ndarray) -> Scores:
        """Sums over the tokens of a pair, scaled: their mean is the mean over all tokens.

        Objectives give sums; `tokens` is what they are sums over.
        """
        scale = len(numbers) / max(1.0, float(scores["tokens"].sum()))
        return {
            name: rows.astype(np.float64) * scale
            for name, rows in scores.items()
            if name != "tokens"
        }

    def clusters(self, split: Split) -> np.ndarray:
        """Of each pair the document that it is from."""
        return self.pack.arrays["documents"][self._members[split]]

    def _members_of(self, split: int) -> np.ndarray:
        own = np.flatnonzero(self._splits == split)
        return own[: self.evaluated] if split == SPLITS.index("test") else own

    def _made(
        self,
        text: Int[Tensor, " t"],
        spans: Int[Tensor, "4 b"],
        numbers: Int[Tensor, " b"],
        length: int,
    ) -> Batch:
        specials = self.pack.specials
        pad, begin, end = specials[PAD], specials[BEGIN], specials[END]
        place = torch.arange(length, device=text.device)
        first, a, second, b = (one.long()[:, None] for one in spans)
        last = len(text) - 1
        source = text[(first + place).clamp(max=last)].long()
        source = source.masked_fill(place == a, end)
        source = source.masked_fill(place > a, pad)
        words = text[(second + place).clamp(max=last)].long()
        labels = words.masked_fill(place == b, end)
        filling = (numbers == FILLING)[:, None] | (place > b)
        target = torch.cat([torch.full_like(words[:, :1], begin), words[:, :-1]], 1)
        return Batch(
            source,
            labels.masked_fill(filling, IGNORED),
            (~filling).float(),
            padding=place > a,
            target=target.masked_fill(place > b, pad),
        )


def _check(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Lengths that add up, and two sides of each pair.

    Raises:
        FileFormatError: If not.
    """
    a, b = arrays["sources"], arrays["targets"]
    counts = {len(arrays[key]) for key in ("sources", "targets", "splits", "documents")}
    if len(counts) > 1 or int(a.sum() + b.sum()) != len(arrays["tokens"]):
        msg = (
            f"The arrays of the pack {name!r} do not fit together: columns of {counts} "
            f"pairs, and {len(arrays['tokens'])} tokens. Make the pack anew."
        )
        raise FileFormatError(msg)
    empty = np.flatnonzero((a == 0) | (b == 0))
    missing = [one for k, one in enumerate(SPLITS) if not (arrays["splits"] == k).any()]
    if len(empty) or missing:
        what = f"pair {empty[0]} is empty" if len(empty) else f"no {missing[0]} pair"
        msg = (
            f"The pack {name!r} cannot be learnt from: {what}. A pair has a source and a "
            "target, and every split has pairs. Make the pack anew."
        )
        raise FileFormatError(msg)
