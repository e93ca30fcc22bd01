"""The code blocks of the documentation, and what can be said of a command without running it.

A block runs unless the line above it is `<!-- not run: reason -->`. What it needs and does not show stands above it, in
`<!-- before:` and lines of the block's language up to `-->`. C, C++ and CMake that stand word for word in the file that the
text above links to need not run here: that file does.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
from pathlib import Path

import click
from tessera.bench.case import all_cases
from tessera.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
)
BLOCK = re.compile(
    r"(?:^<!-- before:\n(?P<before>.*?)^-->\n|^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
CUT = {"c", "cpp", "cmake"}


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int  # of the page, on which the code begins
    language: str
    code: str
    before: str
    reason: str  # why it does not run; "": it does
    cut: bool  # from a file that is built elsewhere

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def placed(self) -> str:
        """The code on the lines of its page, so that an error names them."""
        return "\n" * (self.line - 1) + self.code


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page that run, in the given languages; of all languages and with those that do not, if none is."""
    found = []
    source = text(page)
    for match in BLOCK.finditer(source):
        line = source.count("\n", 0, match.start("code")) + 1
        cut = match["language"] in CUT and match["code"] in _linked(page, source[: match.start()])
        found.append(
            Block(page, line, match["language"], match["code"], match["before"] or "", match["reason"] or "", cut)
        )
    return [block for block in found if not languages or (block.language in languages and not block.reason)]


def _linked(page: str, above: str) -> str:
    """The last file that the text above links to."""
    links = re.findall(r"\]\(([^)#:\s]+)\)", above)
    path = (ROOT / page).parent / (links[-1] if links else "")
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def commands(block: Block) -> list[list[str]]:
    """The words of each command; where some lines begin with a prompt, the others are output."""
    code = block.code.replace("\\\n", " ")
    if prompted := re.findall(r"^\s*\$ (.*)$", code, re.MULTILINE):
        code = "\n".join(prompted)
    code = re.sub(r"\$\([^)]*\)", "", code)  # what another command says
    code = re.sub(r"for (\w+) in (\S+)[^;]*; do (.*); done", lambda loop: loop[3].replace(f"${loop[1]}", loop[2]), code)
    found = []
    for line in code.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
            found.append(words[:end])
            words = words[end + 1 :]
    return [words for words in found if words]


def inline_commands(page: str) -> list[tuple[int, list[str]]]:
    """Commands within the text: the line, and the words."""
    source = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text(page))
    found = re.finditer(r"`((?:tessera|make) [^`\n]+)`", source)
    return [(source.count("\n", 0, match.start()) + 1, shlex.split(match[1])) for match in found]


def check(words: list[str]) -> None:
    """Raises AssertionError or click.UsageError where a command would not be understood."""
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    cut = next((i for i, word in enumerate(words) if re.fullmatch(r">>?|<", word)), len(words))
    name, *rest = words[:cut]
    name = name.removeprefix(".venv/bin/")
    assert name in CHECKS, f"nothing is known of the command {name}; say `not run`, and why"
    CHECKS[name](rest)


def _tessera(rest: list[str]) -> None:
    name, *options = rest
    if name in ("--help", "--version", "COMMAND"):
        return
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"tessera has no command {name}"
    for word in options:
        if re.fullmatch(r"\w+\.(jsonl?|txt)", word):
            Path(word).touch()  # a file that a reader would have
    if not options or any(re.fullmatch(r"[A-Z]+(\.\.\.)?", word) for word in options):
        return  # the command is spoken of, or what it takes is
    try:
        given = command.make_context(name, options).params
    except click.exceptions.Exit:  # --help
        return
    of_cases = set().union(*(case.defaults for case in all_cases().values()))
    sizes = {option for option, value in given.items() if option in of_cases and value is not None}
    for case in given["cases"] if name == "bench" else ():
        foreign = sizes - set(all_cases()[case].defaults)
        assert not foreign, f"case {case} has no {', '.join(foreign)}"


def _make(rest: list[str]) -> None:
    makefile = text("Makefile")
    for word in rest:
        if "=" in word:
            assert f"$({word.partition('=')[0]}" in makefile, f"the Makefile reads no {word}"
        elif not word.startswith("-"):
            assert re.search(rf"^{re.escape(word)}:.*## ", makefile, re.MULTILINE), f"there is no make {word}"


def _preset(rest: list[str]) -> None:
    presets = {entry["name"] for entry in json.loads(text("CMakePresets.json"))["configurePresets"]}
    for option, value in itertools.pairwise(rest):
        assert option != "--preset" or value in presets, f"there is no preset {value}"


def _files(rest: list[str]) -> None:
    for word in rest:
        if re.search(r"\.(cc|c|py)$", word):
            assert (ROOT / word).is_file(), f"there is no {word}"


def _python(rest: list[str]) -> None:
    assert rest[0].endswith(".py"), "nothing is known of python " + " ".join(rest)
    _files(rest)


def _pip(rest: list[str]) -> None:
    extras = re.findall(r"^(\w+) = \[", text("pyproject.toml").partition("[project.optional-dependencies]")[2], re.M)
    match = re.fullmatch(r"install \.(?:\[(\w+)\])?", " ".join(rest))
    assert match, "nothing is known of pip " + " ".join(rest)
    assert match[1] is None or match[1] in extras, f"the package has no extra {match[1]}"


CHECKS = {
    "tessera": _tessera, "make": _make, "cmake": _preset, "ctest": _preset, "pip": _pip, "python": _python, "cc": _files,
    "c++": _files,
}  # fmt: skip
