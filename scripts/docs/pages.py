"""MkDocs hook: the pages of the site that do not lie in docs/, and links as a reader of the repository writes them.

README, CONTRIBUTING, SECURITY and CHANGELOG are pages. A file of the repository that some page links to becomes a page too, so
that the site is whole without a place where the sources are hosted. A link to a file that does not exist is an error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".hpp": "cpp", ".c": "c", ".py": "python", ".toml": "toml", ".json": "json"}

# A fenced block, code within a line, or the target of a link; only the last is a group.
LINK = re.compile(r"^```.*?^```|``.+?``|`[^`\n]+`|(?<=\]\()([^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)


def on_config(config):
    """A folder in the navigation stands for its pages, by name."""
    for entry in config.nav:
        for title, target in entry.items() if isinstance(entry, dict) else ():
            if isinstance(target, str) and target.endswith("/"):
                entry[title] = sorted(f"{target}{page.name}" for page in Path(config.docs_dir, target).glob("*.md"))
    return config


def on_files(files, config):
    for name in TOP:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    linked = {path for file in files.documentation_pages() for path in _linked_sources(file)}
    for path in sorted(linked):
        files.append(_source_page(path, config))
    return files


def on_page_markdown(markdown, *, page, config, files):
    here = posixpath.dirname(page.file.src_uri)

    def rewrite(match):
        path, mark, anchor = (match[1] or "").partition("#")
        if not path or ":" in path:
            return match[0]
        return posixpath.relpath(_src_uri(_repository_path(page.file, path)), here or ".") + mark + anchor

    return LINK.sub(rewrite, markdown)


def _repository_path(file: File, link: str) -> str:
    """What a link in a page names, from the root of the repository."""
    folder = "" if file.src_uri in TOP else posixpath.join("docs", posixpath.dirname(file.src_uri))
    return posixpath.normpath(posixpath.join(folder, unquote(link)))


def _src_uri(path: str) -> str:
    if path in TOP:
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _linked_sources(file: File) -> list[str]:
    targets = [match[1].partition("#")[0] for match in LINK.finditer(file.content_string) if match[1]]
    paths = [_repository_path(file, target) for target in targets if target and ":" not in target]
    return [path for path in paths if _src_uri(path).startswith("source/")]


def _source_page(path: str, config) -> File:
    file = ROOT / path
    if not file.is_file():
        raise PluginError(f"a page links to {path}, which is no file of the repository")
    text = file.read_text(encoding="utf-8")
    body = text if file.suffix == ".md" else f"````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
    head = f"---\ntitle: {file.name}\nsearch: {{exclude: true}}\n---\n"
    heading = "" if file.suffix == ".md" else f"# {path}\n\n"
    return File.generated(config, _src_uri(path), content=head + heading + body, inclusion=InclusionLevel.NOT_IN_NAV)
