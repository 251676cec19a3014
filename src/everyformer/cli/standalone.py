"""The verifier as one file, which needs Python, numpy and python-flint alone.

`python -m everyformer.cli.standalone FILE` writes it; `python FILE DIR` then checks the
certificate in DIR, with what lies in that one file and nothing that builds networks.
"""

import ast
import io
import sys
import zipapp
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

from everyformer.cli import tables
from everyformer.cli.saving import new_file

FIRST = "everyformer.certify.from_files"
SOURCES = Path(__file__).parents[2]
DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file inside: the same sources give the same bytes, whose hash can be told."""

MAIN = '''\
"""Check a certificate of everyformer from the weights and itself alone."""

import argparse
import json
import os
import sys

from everyformer.certify.from_files import verify_files
from everyformer.certify.work import MAX_WORK
from everyformer.errors import EveryformerError
from everyformer.files.network_file import MAX_MEMORY


def main():
    parser = argparse.ArgumentParser(
        prog="everyformer-verify",
        description=__doc__,
        epilog="Exit code 0: PROVED, also where the first line says CONDITIONAL: what "
        "is declared of f is not proved. 1: REFUTED. 3: UNKNOWN. 2: no verdict.",
    )
    parser.add_argument("folder", metavar="DIR", help="what `everyformer construct` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--max-work", type=float, default=MAX_WORK, metavar="SECONDS", help="refuse more"
    )
    parser.add_argument(
        "--max-memory",
        type=float,
        default=MAX_MEMORY / 2**30,
        metavar="GIB",
        help="refuse more",
    )
    given = parser.parse_args()
    try:
        found = verify_files(
            given.folder,
            max_work=given.max_work,
            max_memory=given.max_memory * 2**30,
        )
    except (EveryformerError, FileNotFoundError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # whatever it is: 1, as Python would have it, is REFUTED
        print(f"Error: {error!r}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_json(), indent=2) if given.json else found)
    return found.verdict.exit_code


def exit_code():
    """As the command has it: 141 where nobody reads, 2 where nothing can be written."""
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # what cannot be written is not a verdict
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 128 + 13
        print(f"Error: {error.strerror}.", file=sys.stderr)
        return 2


sys.exit(exit_code())
'''


def write_standalone(path: Path) -> None:
    """Write the verifier to one file that Python can run.

    Its packages are empty, so that importing a module of it imports no other.

    Args:
        path: Where to write, by custom a name in .pyz; replaced if it exists.
    """
    modules = verifier_modules()
    files = {_place(name): text for name, text in modules.items()}
    folders = {parent for place in files for parent in place.parents[:-1]}
    files |= {folder / "__init__.py": "" for folder in folders}
    files[Path("__main__.py")] = MAIN
    with io.BytesIO() as plain:
        with zipfile.ZipFile(plain, "w") as archive:
            for place, text in sorted(files.items()):
                archive.writestr(zipfile.ZipInfo(place.as_posix(), DATE), text)
        plain.seek(0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            whole = cast("BinaryIO", file)
            zipapp.create_archive(plain, whole, interpreter="/usr/bin/env python3")
    path.chmod(0o755)


def verifier_modules() -> dict[str, str]:
    """The sources of everything that the verifier imports, by name; no packages."""
    found: dict[str, str] = {}
    waiting = [FIRST]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (SOURCES / _place(name)).read_text(encoding="utf-8")
            waiting += _imported(found[name])
    return found


def _imported(source: str) -> list[str]:
    """The modules of everyformer that a source imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # What is imported may be a name of the module or a module of the package.
            names += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    ours = [name for name in names if name.startswith("everyformer.")]
    return [name for name in ours if (SOURCES / _place(name)).is_file()]


def _place(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


if __name__ == "__main__":
    write_standalone(Path(sys.argv[1]))
    sources = verifier_modules().values()
    lines = sum(text.count("\n") for text in sources)
    tables.show(f"Wrote {sys.argv[1]}: {len(sources)} modules, {lines:,} lines.")
