"""Small networks of every method, with their certificates, as folders to tamper with."""

import math
from collections.abc import Callable
from pathlib import Path

import everyformer as ef
from everyformer import patterns, targets

Build = Callable[[], ef.Built]

SUBJECTS: dict[str, Build] = {
    "shifts": lambda: ef.construct(targets.centring(2, 1), grid=4),
    "shifts, d = 2": lambda: ef.construct(targets.centring(2, 2), grid=2),
    "shifts, positions": lambda: ef.construct(targets.reverse(2, 1), grid=4),
    "shifts, exact": lambda: ef.construct(
        targets.centring(2, 1), grid=4, method=ef.SelectiveShifts(softened=False)
    ),
    "shifts, exact, positions": lambda: ef.construct(
        targets.reverse(2, 1), grid=3, method=ef.SelectiveShifts(softened=False)
    ),
    "urpe": lambda: ef.construct(targets.prefix_mean(2, 1), grid=4, method="urpe"),
    "sparse": lambda: ef.construct(
        targets.reverse(3, 1), grid=2, method=ef.SparseShifts(patterns.star(3))
    ),
    "averaging": lambda: ef.construct(targets.reverse(2, 1), grid=8, method="averaging"),
    "averaging, narrow": lambda: ef.construct(
        targets.reverse(2, 1), grid=4, method=ef.Averaging(variant="narrow")
    ),
    "averaging, two-step": lambda: ef.construct(
        targets.reverse(2, 1), grid=8, method=ef.Averaging(variant="two-step")
    ),
    "averaging, equivariant": lambda: ef.construct(
        targets.centring(2, 1), grid=4, method=ef.Averaging(positional=False)
    ),
    "partition": lambda: ef.construct(
        targets.soft_attention(2, 1), grid=4, method="partition"
    ),
    "partition, sup norm": lambda: ef.construct(
        targets.soft_attention(2, 1), grid=4, method="partition", p=math.inf
    ),
}


def write_subjects(place: Path) -> dict[str, Path]:
    """Build every network once; each gets a folder with weights and certificate."""
    folders: dict[str, Path] = {}
    for number, (name, build) in enumerate(SUBJECTS.items()):
        folders[name] = place / str(number)
        build().save(folders[name])
    return folders
