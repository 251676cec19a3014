"""Sequences are functions of their number: pure, fresh, uniform."""

import torch

from everyformer.data.batch import Draw
from everyformer.data.randomness import SPLITS, mixed_key, random_integers
from everyformer.experiments.urpe_synthetic.tasks import Synthetic


def test_known_values_never_change() -> None:
    """Results on the disk name a seed; they mean nothing if the generator moves."""
    numbers = [0, 7, 10**12]
    found = random_integers(1000, 5, "test", torch.tensor(numbers), 4)
    assert found[0].tolist() == [889, 918, 846, 39]
    assert found.tolist() == [_by_hand(1000, 5, "test", number, 4) for number in numbers]
    assert mixed_key(1, 2) != mixed_key(2, 1)


def _by_hand(below: int, seed: int, split: str, number: int, n: int) -> list[int]:
    """The same in Python's integers, which do not wrap."""
    golden, top = 0x9E3779B97F4A7C15, 2**64

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % top
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % top
        return x ^ (x >> 31)

    key = 0
    for part in (seed, ("train", "validation", "test").index(split)):
        key = mix(((key ^ part) + golden) % top)
    row = mix((number * golden + key) % top)
    bits = [mix((row + place * golden) % top) for place in range(1, n + 1)]
    return [(x >> 33) * below >> 31 for x in bits]


def test_a_sequence_depends_on_its_number_alone() -> None:
    whole = random_integers(10, 0, "train", torch.arange(64), 12)
    parts = [random_integers(10, 0, "train", torch.arange(k, 64, 4), 12) for k in range(4)]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)
    longer = random_integers(10, 0, "train", torch.arange(64), 20)
    assert torch.equal(longer[:, :12], whole)


def test_no_sequence_is_seen_twice() -> None:
    task, count = Synthetic("pi", 16, 10, 0), 4000
    seen = [tuple(row) for split in SPLITS for row in _rows(task, split, count)]
    other = [tuple(row) for row in _rows(Synthetic("pi", 16, 10, 1), "train", count)]
    assert len(set(seen) | set(other)) == 4 * count


def test_tokens_are_uniform_and_independent() -> None:
    """Chi-squared over tokens, and over pairs of neighbours in both directions."""
    drawn = random_integers(10, 3, "train", torch.arange(20_000), 16)
    assert _chi_squared(drawn, 10) < 30  # 9 degrees of freedom: 30 has probability 4e-4
    for pairs in (drawn[:, 1:] * 10 + drawn[:, :-1], drawn[1:] * 10 + drawn[:-1]):
        assert _chi_squared(pairs, 100) < 160  # 99 degrees: 1e-4
    assert _chi_squared(drawn.clamp_max(8), 10) > 1e4, "the control"


def _rows(task: Synthetic, split: str, count: int) -> list[list[int]]:
    assert split in SPLITS
    return task.batch(split, Draw(torch.arange(count), task.length)).tokens.tolist()


def _chi_squared(values: torch.Tensor, kinds: int) -> float:
    counts = torch.bincount(values.flatten(), minlength=kinds).double()
    expected = values.numel() / kinds
    return float(((counts - expected) ** 2 / expected).sum())
