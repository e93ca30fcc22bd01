"""What was saved of earlier measurements: the lines of `tessera bench --json`, read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import click

Line = dict[str, Any]

# What a size in "shape" is called; others keep their letter.
_NAMES: dict[str, Callable[[Any], str]] = {
    "B": lambda n: f"batch {n}",
    "Sq": lambda n: _plural(n, "row"),
    "Hi": lambda n: _plural(n, "index head"),
    "K": lambda n: f"top {n}",
    "block": lambda n: f"blocks of {n}",
    "block_q": lambda n: "a list per row" if n == 1 else f"a list per {n} rows",
    "page": lambda n: f"pages of {n}",
    "overlap": lambda share: f"overlap {share:g}",
    "layout": str,
}
_MEASUREMENT = ("case", "shape", "dtype", "threads", "variant", "ms", "gflops", "gbps", "ceiling", "peers")


def read_objects(file: TextIO) -> list[Line]:
    """The JSON objects of a file, one per line. UsageError: a line that is none, or no line."""
    objects = []
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise click.UsageError(f"line {number} of {file.name} is not a JSON object")
        objects.append(found)
    if not objects:
        raise click.UsageError(f"{file.name} is empty")
    return objects


def is_measurement(line: Line) -> bool:
    return all(name in line for name in _MEASUREMENT)


def read_measurements(file: TextIO) -> list[Line]:
    """UsageError: a line that is not one of `tessera bench --json`."""
    lines = read_objects(file)
    for number, line in enumerate(lines, 1):
        if not is_measurement(line):
            raise click.UsageError(f"object {number} of {file.name} is not a line of tessera bench --json")
    return lines


def length(line: Line) -> int:
    """Tokens of context, or what the case has in their place."""
    return next(line["shape"][name] for name in ("Sk", "S", "N", "Sq") if name in line["shape"])


def fields(line: Line) -> dict[str, str]:
    """All that tells a measurement from others of its case, but for the length of the context, in words."""
    sizes = dict(line["shape"])
    if sizes.get("Sq") == length(line):
        del sizes["Sq"]
    if sizes.get("block_q") == sizes.get("block"):
        sizes.pop("block_q", None)
    for name in ("Sk", "S", "N"):
        sizes.pop(name, None)
    words = {}
    if "Hkv" in sizes:
        words["heads"] = f"{sizes.pop('Hq')}/{sizes.pop('Hkv')} heads"
    elif "Hq" in sizes:
        words["heads"] = _plural(sizes.pop("Hq"), "head")
    for name, size in sizes.items():
        words[name] = _NAMES[name](size) if name in _NAMES else f"{name} {size}"
    threads = _plural(line["threads"], "thread")
    return words | {"dtype": line["dtype"], "threads": threads, "variant": line["variant"]}


def _plural(count: int, word: str) -> str:
    return f"{thousands(count)} {word}{'' if count == 1 else 's'}"


def at_several_lengths(lines: list[Line]) -> list[Line]:
    """The lines of what was measured at more than one length."""
    keys = [(line["case"], *fields(line).values()) for line in lines]
    lengths: dict[tuple[str, ...], set[int]] = {}
    for key, line in zip(keys, lines, strict=True):
        lengths.setdefault(key, set()).add(length(line))
    return [line for key, line in zip(keys, lines, strict=True) if len(lengths[key]) > 1]


def common(lines: Iterable[Line]) -> dict[str, str]:
    """The fields that all lines share."""
    shared, *others = map(fields, lines)
    for other in others:
        shared = {name: text for name, text in shared.items() if other.get(name) == text}
    return shared


def caption(shared: dict[str, str]) -> str:
    return ", ".join(text for text in shared.values() if text != "batch 1")


def differing(line: Line, shared: dict[str, str]) -> str:
    """The fields of a line that are not in `shared`."""
    return ", ".join(text for name, text in fields(line).items() if name not in shared)


def thousands(tokens: int) -> str:
    """8192: 8K; 1048576: 1M; what is no multiple as it is."""
    if tokens and tokens % 2**20 == 0:
        return f"{tokens // 2**20}M"
    return f"{tokens // 1024}K" if tokens and tokens % 1024 == 0 else f"{tokens:,}"
