"""One file from many modules, and nothing in it that runs but they."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from everyformer.explore import inline
from everyformer.explore.embedding import safe_json


def test_the_page_is_small_and_names_its_script() -> None:
    text = inline.page({"kind": "network"}, "a page")
    assert len(text) < 600 * 1024
    script = re.search(r"<script>(.*)</script>", text, re.S)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", text)


@pytest.mark.parametrize("words", ["</script>", "<!--", "\u2028", "&lt;", "\\u003c"])
def test_any_words_come_back_from_the_data(words: str) -> None:
    text = safe_json({"name": words})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": words}


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        safe_json([float("nan")])


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ('import { b } from "./a.js";\n', "import each other"),
        ('import b from "./b.js";\n', "cannot|not an import"),
        ("export default 3;\n", "not an import or export"),
        ('export const a = "</script>";\n', "end the script"),
    ],
)
def test_what_cannot_be_inlined_is_refused(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.js").write_text(source)
    monkeypatch.setattr(inline, "PAGE", tmp_path)
    with pytest.raises(ValueError, match=told):
        inline.bundle("a")
