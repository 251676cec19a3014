"""Scripts become pages with what they print, and a script that fails has no page."""

from pathlib import Path

import pytest
from website.github import readable
from website.places import place_of
from website.tutorials import run

SCRIPT = '''"""A title.

The lead.
"""

# %% [markdown]
# ## Text
#
# With a [link](../docs/tour.md).

# %%
from matplotlib.figure import Figure

a = 20


# %%
def where() -> int:
    """The line that this is."""
    import sys

    return sys._getframe().f_lineno


# %%
if __name__ == "__main__":
    print("line", where())

# %%
figure = Figure()
figure.subplots().plot([1, 2])
'''


def test_a_script_becomes_a_page(tmp_path: Path) -> None:
    script = tmp_path / "tried.py"
    script.write_text(SCRIPT)
    made = run(script)
    line = SCRIPT.splitlines().index("    return sys._getframe().f_lineno") + 1
    text = "## Text\n\nWith a [link](../docs/tour.md)."
    assert made.markdown.startswith(f"# A title\n\nThe lead.\n\n{text}\n\n```python\n")
    assert f"``` {{ .text .output }}\nline {line}\n```" in made.markdown
    assert '```python\nprint("line", where())\n```' in made.markdown
    assert "__main__" not in made.markdown
    assert "![](tried_1.png)" in made.markdown
    assert made.files["tried_1.png"].startswith(b"\x89PNG")


def test_a_script_that_fails_has_no_page(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT + "\n# %%\nassert a == 21\n")
    with pytest.raises(AssertionError):
        run(script)


def test_lists_and_tables_need_no_blank_line() -> None:
    text = "A line:\n- one\n  more\n- two\n\nRows:\n| a |\n|---|\n| b |\n"
    assert readable(text) == text.replace("line:\n", "line:\n\n").replace(
        "Rows:\n", "Rows:\n\n"
    )
    code = "```\nA line:\n- one\n```\n"
    assert readable(code) == code
    assert readable("```python\n>>> 1\n1\n```") == "```pycon\n>>> 1\n1\n```"


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("docs/constructions/dense.md", "constructions/dense.md"),
        ("README.md", "index.md"),
        ("examples/reverse.py", "tutorials/reverse.md"),
        ("src/everyformer/ops/a/README.md", "files/src/everyformer/ops/a/README.md"),
        ("src/everyformer/errors.py", "files/src/everyformer/errors.py.md"),
        ("benchmarks/results/a.json", "files/benchmarks/results/a.json"),
    ],
)
def test_places_in_the_site(origin: str, place: str) -> None:
    assert place_of(origin) == place
