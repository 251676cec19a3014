"""What MkDocs calls: pages that are made, and links that leave docs/.

Every page has an origin in the repository, and its links are read from there, as on GitHub.
What a link reaches outside docs/ becomes part of the site: Markdown and source as pages
below files/, pictures and data as they are, a script of examples/ as a tutorial.
"""

import posixpath
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from website.github import readable
from website.links import Link, links, loaded_from_elsewhere, relinked, resolved
from website.places import PLACES, SHOWN_AS_CODE, place_of

from website import results, tutorials

ROOT = Path(__file__).parents[1]
BENCHMARKS, EXPERIMENTS = (ROOT / one / "results" for one in ("benchmarks", "experiments"))
EXPLORED = ("smooth_rank", "-n", "3", "--grid", "4")
"""What the home page explores."""

WITHOUT = {"papers.md": ["toc"], "index.md": ["navigation", "toc"]}
"""Pages that need the width of what stands beside others."""

EXPLORER = "<!-- explorer -->"
EXPLORER_PAGE = "explored_network.html"
"""Where a page of the first level shows it, and its file."""

origins: dict[str, str] = {}
"""Where each page comes from, by its place in the site; both relative."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made, and what links reach outside docs/."""
    origins.clear()

    def add(place: str, origin: str, content: str | bytes) -> None:
        made = File.generated(config, place, content=content)
        if made.dest_uri in {file.dest_uri for file in files}:
            raise PluginError(f"{origin or place} and another file become {made.dest_uri}.")
        files.append(made)
        origins[place] = origin

    for script in sorted((ROOT / "examples").glob("*.py")):
        made = tutorials.run(script)
        add(f"tutorials/{script.stem}.md", f"examples/{script.name}", made.markdown)
        for name, content in made.files.items():
            add(f"tutorials/{name}", "", content)
    add(EXPLORER_PAGE, "", _explorer())
    add("benchmarks.md", "docs/benchmarks.md", results.benchmarks_page(BENCHMARKS))
    add("results.md", "docs/results.md", results.experiments_page(EXPERIMENTS))
    for page in files.documentation_pages():
        origins.setdefault(page.src_uri, f"docs/{page.src_uri}")
    waiting = [(origins[page.src_uri], page) for page in files.documentation_pages()]
    for origin, place in PLACES.items():
        if not (ROOT / origin).is_file() or place in files.src_uris:
            continue
        add(place, origin, (ROOT / origin).read_text(encoding="utf-8"))
        waiting.append((origin, files.src_uris[place]))
    while waiting:
        origin, page = waiting.pop()
        for link in links(page.content_string):
            target = resolved(origin, link)
            place, file = place_of(target), ROOT / target
            if target.startswith("docs/") or place in files.src_uris or not file.is_file():
                continue
            add(place, target, _content(file))
            if place.endswith(".md"):
                waiting.append((target, files.src_uris[place]))
    return files


def _content(file: Path) -> str | bytes:
    """What is shown of a file outside docs/."""
    if file.suffix == ".md":
        if file.parent == EXPERIMENTS:
            return results.experiment_page(file)
        return file.read_text(encoding="utf-8")
    if file.suffix in SHOWN_AS_CODE:
        text = file.read_text(encoding="utf-8")
        return f"# {file.name}\n\n````{SHOWN_AS_CODE[file.suffix]}\n{text}\n````\n"
    return file.read_bytes()


def _explorer() -> bytes:
    """The page of `everyformer explore` that the home page has in a frame."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "everyformer.cli.app", "explore", *EXPLORED]
        done = subprocess.run(
            [*command, "--site", ".", "-o", page], capture_output=True, text=True
        )
        if done.returncode:
            raise PluginError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return page.read_bytes()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to their places, and write what GitHub reads as MkDocs reads it."""
    here = page.file.src_uri
    page.meta.setdefault("hide", WITHOUT.get(here, []))
    origin = origins[here]

    def new(link: Link) -> str:
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(here), link.path))
        if not link.path or (here.startswith("tutorials/") and beside in files.src_uris):
            return link.target
        place = place_of(resolved(origin, link))
        if place not in files.src_uris:  # MkDocs says so, with the page
            return link.target
        path = posixpath.relpath(place, posixpath.dirname(here))
        return f"{path}#{link.anchor}" if link.anchor else path

    text = readable(relinked(markdown, new))
    return text.replace(EXPLORER, tutorials.framed(EXPLORER_PAGE, "A network explored"))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from elsewhere."""
    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(found)}: keep it here.")
    return output
