"""MkDocs hooks that add the pages of the project's root to the site, and make links work on it as in the repository.

Pages link to files by their path in the repository, such as `docs/start/requirements.md` or `../examples/attach/`. On
the site, `docs` is the root and the README is the first page. Other files that pages link to are added unchanged.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
ROOT_PAGES |= {"SECURITY.md": "SECURITY.md"}
"""Pages outside of `docs`, with their paths on the site."""

LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"([-*]|\d+\.) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root's pages, and the files outside of `docs` that pages link to."""
    pages = {ROOT / name: name for name in ROOT_PAGES}
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for page in [*pages, *(ROOT / "docs").rglob("*.md")]:
        for _, target in LINK.findall(page.read_text(encoding="utf-8")):
            path = PurePosixPath(os.path.relpath(page.parent / target, ROOT))
            uri = _on_site(path)
            if (ROOT / path).is_file() and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (MkDocs' signature)
    """Point links to the paths of their targets on the site, and put an empty line before each list, which MkDocs'
    Markdown requires. A link to a missing file stays unchanged, and MkDocs reports it."""
    here = PurePosixPath(page.file.src_uri)
    written_in = {uri: PurePosixPath(name).parent for name, uri in ROOT_PAGES.items()}
    folder = written_in.get(here.as_posix(), PurePosixPath("docs") / here.parent)

    def moved(link: re.Match[str]) -> str:
        path = PurePosixPath(os.path.relpath(ROOT / folder / link[2], ROOT))
        if not (ROOT / path).is_file():
            return link[0]
        return link[1] + os.path.relpath(_on_site(path), here.parent)

    return LINK.sub(moved, _with_spaced_lists(markdown))


def _on_site(path: PurePosixPath) -> str:
    """Return the path on the site of a file of the repository."""
    if path.as_posix() in ROOT_PAGES:
        return ROOT_PAGES[path.as_posix()]
    return path.relative_to("docs").as_posix() if path.parts[0] == "docs" else path.as_posix()


def _with_spaced_lists(markdown: str) -> str:
    lines: list[str] = []
    fenced = in_paragraph = False
    for line in markdown.splitlines():
        fenced ^= bool(FENCE.match(line))
        if in_paragraph and not fenced and ITEM.match(line):
            lines.append("")
            in_paragraph = False
        elif not line.strip():
            in_paragraph = False
        elif not line.startswith((" ", "|", "#", ">")):
            in_paragraph = not ITEM.match(line) and (in_paragraph or not lines or not lines[-1].strip())
        lines.append(line)
    return "\n".join(lines)
