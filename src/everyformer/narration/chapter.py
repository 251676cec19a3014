"""A step of a proof, told: what it is for, and what it does to the tokens at hand."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from everyformer.model.construction import Construction
from everyformer.model.network import Network
from everyformer.model.stacks import Stage
from everyformer.narration.numbers import SHOWN_TOKENS, agree, number, tokens, vector
from everyformer.notebook import short

SHOWN_LINES = 40
WIDTH = 88
UNTOLD = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
"""What comes of a stage that is not what its name says."""


@dataclass(frozen=True)
class Scene:
    """A stage of a network, and the tokens before and after it.

    Attributes:
        network: The network.
        stage: The stage.
        x: What the network was given, shape (n, d).
        before: All tokens before the stage, the prefix too.
        after: All tokens after it.
    """

    network: Network
    stage: Stage
    x: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.x)

    @property
    def construction(self) -> Construction:
        """What is known of the network."""
        made = self.network.construction
        assert made is not None, "only constructed networks are told"  # noqa: S101
        return made

    @property
    def K(self) -> int:
        """Cells per axis."""
        return self.construction.grid

    @property
    def delta(self) -> Fraction:
        """The width of a cell of the unit cube."""
        return Fraction(1, self.K)

    @property
    def old(self) -> np.ndarray:
        """The tokens of the sequence before the stage."""
        return self.before[len(self.before) - self.n :]

    @property
    def new(self) -> np.ndarray:
        """The tokens of the sequence after it."""
        return self.after[len(self.after) - self.n :]

    def ids(self, state: np.ndarray) -> np.ndarray:
        """u^T z of every token."""
        found = self.network.ids(state)
        assert found is not None, "a stage that moves ids has ids"  # noqa: S101
        return found

    @cached_property
    def unchanged(self) -> bool:
        """Whether the stage leaves the sequence as it is."""
        return agree(self.old, self.new)

    @cached_property
    def unit(self) -> np.ndarray:
        """x in coordinates in which the box is [0, 1]^d."""
        return unit_of(self.construction, self.x)


def unit_of(made: Construction, x: np.ndarray) -> np.ndarray:
    """x in coordinates in which the box is [0, 1]^d."""
    lows, highs = np.array(made.lows), np.array(made.highs)
    return (np.asarray(x, dtype=np.float64) - lows) / (highs - lows)


@dataclass(frozen=True)
class Chapter:
    """One step.

    Attributes:
        title: Its name.
        source: Where it is proved, and how many blocks it takes.
        claim: What it is for.
        lines: What it does here.
        values: The tokens after it, for a table.
    """

    title: str
    source: str
    claim: str
    lines: tuple[str, ...]
    values: tuple[str, ...]

    def text(self, number: int) -> list[str]:
        """The step as lines of text."""
        told = wrapped(self.claim, "   ", "   ")
        for line in cut(self.lines):
            told += wrapped(line, "     ", "       ")
        return [f"{number}. {self.title} ({self.source})", *told]


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """Text in lines of at most `WIDTH`."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest)


@dataclass(frozen=True)
class Told:
    """What a narrator says of a stage.

    Attributes:
        claim: What the stage is for, with the constants of this network.
        lines: What it does here.
        expected: What the formula makes of the tokens; None where it has no formula.
        values: What a table shows of the tokens; by default all of them.
    """

    claim: str
    lines: tuple[str, ...]
    expected: np.ndarray | None = None
    values: tuple[str, ...] | None = None


Narrator = Callable[[Scene], Told]


@dataclass(frozen=True)
class Teller:
    """How a construction with registers is told.

    Attributes:
        theorem: What it is called in files.
        title: What people call it.
        narrators: Of its steps, by their names.
        cells: The cell of every coordinate, for constructions that hold a table.
    """

    theorem: str
    title: str
    narrators: Mapping[str, Narrator] = field(default_factory=dict[str, Narrator])
    cells: Callable[[Scene], np.ndarray] | None = None


def tell(scene: Scene, narrator: Narrator | None) -> Chapter:
    """The chapter of a stage; where the formula does not give what came out, that is said.

    Names and kinds of stages are words of a file: a narrator believes the weights alone.
    """
    stage = scene.stage
    source = f"{stage.source}; {stage.blocks:,} block{'s' * (stage.blocks != 1)}"
    if narrator is None:
        told = Told("", changes(scene))
    else:
        try:
            told = narrator(scene)
        except UNTOLD as error:
            told = Told(f"This stage is not one of its name: {error}.", changes(scene))
    if told.expected is not None and not agree(told.expected, scene.new):
        why = "Here the formula does not hold; what came out:"
        told = Told(f"{told.claim} {why}", changes(scene))
    values = told.values or _values(scene)
    return Chapter(short(stage.name), short(source, 90), told.claim, told.lines, values)


def _values(scene: Scene) -> tuple[str, ...]:
    """What a table shows of the tokens; of registers those that changed."""
    if scene.network.registers is None:
        return tuple(tokens(scene.new))
    pairs = zip(scene.old[:SHOWN_TOKENS], scene.new, strict=False)
    return tuple(_registers(old, new) for old, new in pairs)


def changes(scene: Scene) -> tuple[str, ...]:
    """What changed, without a reason."""
    if scene.unchanged:
        return ("Nothing changes for this input.",)
    pairs = [
        (j, old, new)
        for j, (old, new) in enumerate(zip(scene.old, scene.new, strict=True))
        if not agree(old, new)
    ]
    if scene.network.registers is None:
        return tuple(f"token {j + 1}: {vector(a)} becomes {vector(b)}" for j, a, b in pairs)
    return tuple(f"token {j + 1}: {_registers(a, b)}" for j, a, b in pairs)


def _registers(old: np.ndarray, new: np.ndarray) -> str:
    """The registers that changed."""
    places = np.flatnonzero(old != new)
    texts = [f"r{k} = {number(new[k])}" for k in places[:SHOWN_TOKENS]]
    return ", ".join([*texts, "..."] if len(places) > SHOWN_TOKENS else texts)


def cut(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Not more lines than a reader reads."""
    rest = len(lines) - SHOWN_LINES
    return lines if rest <= 0 else (*lines[:SHOWN_LINES], f"... and {rest:,} more")
