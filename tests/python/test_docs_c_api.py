"""The code of docs/c-api.md is that of programs which the C++ tests build and run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/c-api.md").read_text(encoding="utf-8")


def test_every_block_is_cut_from_the_file_named_before_it():
    parts = re.split(r"^```(c|cpp|cmake)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(parts) > 3 * 8
    for text, code in zip(parts[::3], parts[2::3], strict=False):
        source = re.findall(r"\]\(\.\./([^)#]+)\)", text)[-1]
        assert code in (ROOT / source).read_text(encoding="utf-8"), f"{source} has no such lines:\n{code}"


def test_what_the_examples_print_is_what_the_page_says():
    message = re.search(r"`error 1: (\w+): (.+?)`", PAGE)
    shape = re.search(r"k \[(\d+), (\d+), (\d+), (\d+)\]", message[2])
    source = (ROOT / "examples/c/paged_decode.c").read_text(encoding="utf-8")
    for name, size in zip(("kPages", "kKvHeads", "kPage", "kDim"), shape.groups(), strict=True):
        assert re.search(rf"\b{name} = {size}\b", source)
    assert f"tessera_{message[1]}(" in source
