"""What is released: one version, and a wheel with all that the package needs."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import everyformer

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "everyformer"
SNAPSHOTS = ROOT / "tests" / "cli" / "snapshots"
DATA = (".json", ".md", ".typed", ".html", ".css", ".js", ".txt")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy, without the network."""
    pytest.importorskip("build")
    work = tmp_path_factory.mktemp("release")
    copy = work / "copy"
    copy.mkdir()
    for name in ("src", "examples", "docs"):
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith(".git"):
            shutil.copy(path, copy / path.name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "out", "."]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return copy / "out"


def wheel_names(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"everyformer-{everyformer.__version__}-py3-none-any.whl"
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_every_module_and_all_data(built: Path) -> None:
    """What lies in the package, and is not the cache of Python, is in the wheel."""
    here = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = wheel_names(built)
    assert here <= inside, sorted(here - inside)
    assert {Path(name).suffix for name in here} <= {".py", *DATA}


def test_the_wheel_has_nothing_else(built: Path) -> None:
    info = f"everyformer-{everyformer.__version__}.dist-info/"
    for name in wheel_names(built):
        assert name.startswith(("everyformer/", info)), name
        assert "__pycache__" not in name
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 4 * 2**20
    entry = zipfile.ZipFile(wheel).read(f"{info}entry_points.txt").decode()
    assert "everyformer = everyformer.cli.start:main" in entry


def test_the_wheel_says_what_it_needs(built: Path) -> None:
    """Tools for development are an extra; the lines for Python 3.11 to 3.13 are there."""
    (wheel,) = built.glob("*.whl")
    info = f"everyformer-{everyformer.__version__}.dist-info/METADATA"
    head = zipfile.ZipFile(wheel).read(info).decode().partition("\n\n")[0]
    needs = re.findall(r"^Requires-Dist: (.*)$", head, flags=re.MULTILINE)
    plain = {re.split(r"[<>=; \[]", one)[0] for one in needs if "extra ==" not in one}
    assert {"numpy", "torch", "typer", "numba", "python-flint"} <= plain
    assert not plain & {"pytest", "ruff", "onnx", "accelerate", "transformers", "build"}
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in head
    assert "Requires-Python: >=3.11" in head


def test_the_sdist_can_be_built_from(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
        "examples/swap_mean.py",
        "examples/first_steps.ipynb",
        "docs/tour.md",
        "docs/pictures/how_it_works.png",
        "src/everyformer/__init__.py",
    } <= names


def test_one_version() -> None:
    """pyproject.toml reads it off the package; the citation and the changelog follow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    attribute = project["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert attribute == "everyformer.__version__"
    version = everyformer.__version__
    said = {"CITATION.cff": r"^version: (.+)$", "CHANGELOG.md": r"^## (\S+)"}
    for name, pattern in said.items():
        found = re.findall(pattern, (ROOT / name).read_text(), flags=re.MULTILINE)
        assert found[0] == version, name


def test_versions_are_pinned_and_explained() -> None:
    """A direct dependency has a version in constraints.txt and a line in the README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    names = {re.split(r"[<>=; \[]", line)[0] for line in lines} - {"everyformer"}
    pins = (ROOT / "constraints.txt").read_text()
    pinned = set(re.findall(r"^(\S+)==", pins, flags=re.MULTILINE))
    readme = (ROOT / "README.md").read_text()
    (table,) = re.findall(r"^\| dependency \| why \|\n(.*?)\n\n", readme, flags=re.M | re.S)
    told = " ".join(line.split("|")[1] for line in table.splitlines())
    for name in names:
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", told), name
    names.remove("triton")  # PyTorch for CUDA asks for one version, and brings it
    assert names <= pinned, names - pinned


def test_commands_of_the_readme_exist() -> None:
    """Every command of the table, and each of its options, is in the help of today."""
    text = (ROOT / "README.md").read_text()
    (table,) = re.findall(
        r"^\| I want to \| command \|\n(.*?)\n\n", text, flags=re.M | re.S
    )
    commands = re.findall(r"`everyformer ([^`]+)`", table)
    assert len(commands) >= 17
    for command in commands:
        name, *rest = command.split()
        help_of_it = (SNAPSHOTS / f"{name}.txt").read_text()
        for option in rest:
            if option.startswith("-"):
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_of_it), command
            file, colon, _ = option.partition(":")
            if file.endswith(".py") and colon:
                assert (ROOT / file).exists(), command


def test_the_readme_is_short_and_plain() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    for riddle in ("further ado", " is none", "is believed", "T^{"):
        assert riddle not in text


def test_files_that_a_contributor_is_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?<![\w*])\w+/[\w/]*\w+\.(?:py|md)", text))
    named = {name for name in named if "NAME" not in name}
    assert len(named) >= 12
    for name in named:
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name
