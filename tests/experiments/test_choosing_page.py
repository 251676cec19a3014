"""The page that helps to choose a pattern says what patterns and results say."""

from tests.experiments.choosing_page import PAGE, arms, evidence, layers_to_hear, theorem

from everyformer.experiments.sparse_arms import Arm


def test_the_table_is_computed() -> None:
    """Every arm's evidence, and what is known of two of them."""
    lines = [line for line in PAGE.read_text().split("\n") if line.startswith("| `")]
    told = {line.split("`")[1]: line.strip("| ").split(" | ") for line in lines}
    assert {*told} == {*arms()}
    for name, line in told.items():
        cells = [cell.strip() for cell in line[6:]]
        assert cells + [""] * (3 - len(cells)) == [*evidence(name)]
    for name in ("fixed-multihead", "star"):
        assert tuple(told[name][:6]) == theorem(name, arms()[name])


def test_layers_until_all_is_heard() -> None:
    assert layers_to_hear(Arm("dense", 0, 16, causal=True)) == 1
    assert layers_to_hear(Arm("star", 2, 16, causal=False)) == 2
    assert layers_to_hear(Arm("strided-multihead", 4, 16, causal=True)) == 3
    assert layers_to_hear(Arm("star", 1, 16, causal=True)) is None, "a window"
