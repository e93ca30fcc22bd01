"""MkDocs hook: the reference pages that come from the C and C++ headers and from the command line, and links to them.

Those from Python docstrings are made by mkdocstrings, from the lines `::: name` in docs/reference.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import click
import tessera.formats
from mkdocs.structure.files import File
from tessera.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
HEADERS = {
    "reference/c.md": ("C", "tessera.h", "c"),
    "reference/parallel.md": ("C: several processes", "parallel.h", "c"),
    "reference/cpp.md": ("C++", "tessera.hpp", "cpp"),
}
SECTION = re.compile(r"^// ---- (.+?) -+\n", re.MULTILINE)
# What a paragraph of tessera.h declares.
DECLARED = re.compile(r"^typedef (?:struct|enum) (tessera_\w+)|^TESSERA_API [^;(]*?(tessera_\w+)\(", re.MULTILINE)

links: dict[str, str] = {}  # name in code -> page and anchor


def on_files(files, config):
    for uri, (title, name, language) in HEADERS.items():
        files.append(File.generated(config, uri, content=_header_page(uri, title, name, language)))
    files.append(File.generated(config, "reference/cli.md", content=_command_page()))
    for file in files.documentation_pages():
        for name in re.findall(r"^::: (tessera\S+)", file.content_string, re.MULTILINE):
            links[name] = links[name.removeprefix("tessera.")] = f"{file.dest_uri}#{name}"
    for name in tessera.formats.__all__:
        links[name] = links[f"tessera.formats.{name}"] = f"reference/formats.html#tessera.formats.{name}"
    return files


def on_page_content(html, *, page, config, files):
    """Names in code that the reference has become links to it, but in headings and links."""
    here = posixpath.dirname(page.file.dest_uri) or "."

    def link(match):
        target = links.get(match[2] or "")
        return f'<a href="{posixpath.relpath(target, here)}">{match[0]}</a>' if target else match[0]

    return re.sub(
        r"(<a\b.*?</a>|<h[1-6]\b.*?</h[1-6]>|<pre\b.*?</pre>)|<code>([\w.]+)(?:\(\))?</code>", link, html, flags=re.S
    )


def _header_page(uri: str, title: str, name: str, language: str) -> str:
    text = (ROOT / "include/tessera" / name).read_text(encoding="utf-8")
    head, *sections = SECTION.split(text)
    parts = [
        f"# {title}\n",
        f"What [{name}](../../include/tessera/{name}) says, section by section.\n",
        _fence(head.partition("#ifndef")[0], language),
    ]
    for heading, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"## {heading}\n")
        parts += _declarations(uri, body) if language == "c" else [_fence(body, language)]
    return "\n".join(parts)


def _declarations(uri: str, section: str) -> list[str]:
    """The paragraphs of a section of tessera.h; one that declares something new begins under its name."""
    parts: list[str] = []
    heading = ""
    for paragraph in re.split(r"\n{2,}", section.strip("\n")):
        names = ["".join(groups) for groups in DECLARED.findall(paragraph)]
        if names and not (heading and names[0].startswith(heading)):
            heading = names[0].removesuffix("_args")
            parts.append(f"### {heading} {{ #{heading} }}\n")
        for name in names:
            links[name] = f"{uri.removesuffix('.md')}.html#{heading}"
        parts.append(_fence(paragraph, "c"))
    return parts


def _fence(code: str, language: str) -> str:
    return f"```{language}\n{code.strip()}\n```\n"


def _command_page() -> str:
    parts = [
        "# Command line\n",
        "What `--help` prints. Exit status: 0 done; 1 a check failed; 2 wrong usage, or something needed is missing.\n",
    ]
    settings = {**main.context_settings, "terminal_width": 92, "max_content_width": 92}
    top = click.Context(main, info_name="tessera", **settings)
    below = [click.Context(main.get_command(top, name), parent=top, info_name=name, **settings) for name in COMMANDS]
    for context in (top, *below):
        parts.append(f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)
