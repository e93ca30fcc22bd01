"""README and docs: that their code runs, their commands exist, their pictures are the library's, their reference is whole."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import tessera
from doc_blocks import PAGES, ROOT, Block, blocks, check, commands, inline_commands, text

LANGUAGES = {"python", "cpp", "c", "console", "json", "text"}
LIBRARY = ROOT / "build/python/libtessera.a"
INCLUDES = "#include <array>\n#include <cstdio>\n#include <vector>\n#include <tessera/tessera.hpp>\n"


def pages(*languages):
    return [page for page in PAGES if blocks(page, *languages)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Files that a block writes go away, and so does what it switches on."""
    monkeypatch.chdir(tmp_path)
    yield
    if transformers := sys.modules.get("tessera.integrations.transformers"):
        transformers.disable()


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_its_language(page):
    unknown = [str(block) for block in blocks(page) if not (block.language in LANGUAGES or block.reason or block.cut)]
    assert not unknown, f"expected one of {', '.join(sorted(LANGUAGES))}, or `not run` and why: {unknown}"
    assert len(re.findall("^<!-- not run:", text(page), re.MULTILINE)) == len([b for b in blocks(page) if b.reason])
    for block in blocks(page, "json"):
        json.loads(block.code)


@pytest.mark.parametrize("page", pages("python"))
def test_python_runs(page):
    names = {"__name__": page}
    for block in blocks(page, "python"):
        try:
            exec(compile(block.before, f"what {block} needs", "exec"), names)
            exec(compile(block.placed(), page, "exec"), names)
        except Exception as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == page]
            pytest.fail(f"{page}:{lines[-1] if lines else block.line}: {error!r}")


def compile_cpp(name: str, source: str, *options) -> None:
    Path(name).write_text(source)
    compiler = ["cc", "-std=c99"] if name.endswith(".c") else ["c++", "-std=c++20"]
    command = [*compiler, f"-I{ROOT / 'include'}", name, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def is_program(block: Block) -> bool:
    return "int main(" in block.code


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
@pytest.mark.parametrize("page", pages("cpp", "c"))
def test_fragments_of_cpp_compile(page):
    fragments = [block for block in blocks(page, "cpp", "c") if not (is_program(block) or block.cut)]
    if not fragments:
        return
    source = INCLUDES
    for block in fragments:
        source += f'void line_{block.line}() {{\n{block.before}\n#line {block.line} "{page}"\n{block.code}\n}}\n'
    compile_cpp("fragments.cc", source, "-fsyntax-only")


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library has not been built here")
@pytest.mark.parametrize("block", [b for page in PAGES for b in blocks(page, "cpp", "c") if is_program(b)], ids=str)
def test_a_program_runs(block):
    source = f'#line {block.line} "{block.page}"\n{block.code}'
    name = "program.c" if block.language == "c" else "program.cc"
    compile_cpp(name, source, LIBRARY, "-pthread", "-lstdc++", "-lm")
    done = subprocess.run(["./a.out"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # A comment behind the last print says what it prints.
    for shown in re.findall(r"printf\(.*?\);  // (\S+)$", block.code, re.MULTILINE):
        assert shown in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    found = [(block.line, words) for block in blocks(page, "console") for words in commands(block)]
    for line, words in found + inline_commands(page):
        try:
            check(words)
        except Exception as error:
            pytest.fail(f"{page}:{line}: {' '.join(words)}: {error}")


def test_the_pictures_are_what_the_library_selects(tmp_path):
    figures = runpy.run_path(str(ROOT / "scripts/docs/figures.py"))
    figures["draw"](tmp_path)
    kept = {path.name: path.read_text() for path in (ROOT / "docs/img").glob("*.svg")}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.svg")} == kept


def test_the_reference_is_whole():
    documented = set(re.findall(r"^::: tessera\.(\w+)$", text("docs/reference/python.md"), re.MULTILINE))
    aliases = {name for name in tessera.__all__ if getattr(tessera, name).__class__ is str}
    aliases |= {name for name in tessera.__all__ if getattr(getattr(tessera, name), "__name__", name) != name}
    assert documented == set(tessera.__all__) - aliases
