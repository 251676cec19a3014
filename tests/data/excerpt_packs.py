"""The packs of made texts in a folder, as --data has them."""

from pathlib import Path

from everyformer.data.packs.excerpt import excerpt
from everyformer.data.packs.pack import pack_path, write_pack


def excerpt_packs(folder: Path) -> list[Path]:
    """Write three packs; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for name in ("enwiki-wp", "nli", "squad"):
        pack = excerpt(name)
        path = pack_path(folder, pack.name)
        keys = ("name", "licence", "tokeniser", "sources", "counts")
        write_pack(path, {key: pack.header[key] for key in keys}, pack.arrays)
        found.append(path)
    return found
