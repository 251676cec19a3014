"""From ids to values, told (Yun et al. 2020, Lemma 7)."""

from everyformer.narration.chapter import Scene, Told, changes
from everyformer.narration.numbers import number, vector


def ids_to_codes(scene: Scene) -> Told:
    """Small integers stand for the ids first, so that float64 does not round."""
    claim = (
        "Ids are large, and a value of f added to one would be rounded. So a small "
        "integer, a code, replaces each id: one layer for each, with a window around it."
    )
    return Told(claim, _replaced(scene, "id", "code"))


def value_map(scene: Scene) -> Told:
    """Lemma 7: the value of f replaces the id, one layer for each token and sequence."""
    coded = any(stage.kind == "ids to codes" for stage in scene.network.stages)
    word = "code" if coded else "id"
    claim = (
        "Lemma 7: one layer for each token of each sequence of cells. Its window holds one "
        f"{word}, and it adds what is missing to the value of f for the cell."
    )
    return Told(claim, _replaced(scene, word, "value"))


def _replaced(scene: Scene, old: str, new: str) -> tuple[str, ...]:
    ids = scene.ids(scene.old)
    lines: list[str] = []
    for j, token in enumerate(scene.new):
        held = f"the {old} {number(ids[j])}"
        if (token != scene.old[j]).any():
            lines.append(f"token {j + 1}: {held} becomes the {new} {vector(token)}")
        else:
            lines.append(f"token {j + 1}: no layer knows {held}; it stays")
    return tuple(lines)


CLAIMS = {
    "cap ids": "Ids beside a token outside the box are cut down to what float64 can hold.",
    "push down": (
        "Tokens whose id has no value (two tokens in one cell, or a token outside the box) "
        "are pushed below 0."
    ),
    "negative to zero": "What is negative becomes 0: the value where Theorem 2 has none.",
    "scale up": "The values are stored divided by a power of two, which is undone here.",
    "clamp": (
        "Every coordinate is clipped to the range of the values, twice: between two cells "
        "the network may be wrong, but not farther off than that."
    ),
    "padding": "Layers that do nothing, until it is the turn of the first pattern.",
}
"""Stages without a formula of their own."""


def plainly(scene: Scene) -> Told:
    """A stage that is told by what it changes."""
    return Told(CLAIMS[scene.stage.name], changes(scene))
