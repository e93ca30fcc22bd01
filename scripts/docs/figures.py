#!/usr/bin/env python3
"""Draws docs/img/*.svg: scripts/docs/figures.py [folder]. What the maps show is what the library selects.

The pictures are kept in the repository, so that its pages can be read where nothing is built; a test compares them with
what this script draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
import tessera

INK, GREY, PALE, ACCENT, WARM, PAPER = "#263238", "#90a4ae", "#eceff1", "#00796b", "#ef6c00", "#ffffff"


class Picture:
    """SVG on white paper, which reads well on dark pages too. Coordinates are pixels, y grows downwards."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
            f'<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str = PALE, line: str = "none", rx: float = 0) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{rx:g}" fill="{fill}" stroke="{line}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 13,
        anchor: str = "middle",
        fill: str = INK,
        bold: bool = False,
    ):
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}>{escape(words)}</text>'
        )

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        self.parts.append(
            f'<path d="M{x0:g} {y0:g} {x1:g} {y1:g}" stroke="{INK}" stroke-width="1.4" fill="none" marker-end="url(#tip)"/>'
        )

    def card(self, x: float, y: float, w: float, h: float, name: str, *lines: str, fill: str = PALE) -> None:
        """A box with a name and lines of smaller text."""
        self.box(x, y, w, h, fill, GREY, 5)
        self.text(x + w / 2, y + 20, name, bold=True)
        for i, line in enumerate(lines):
            self.text(x + w / 2, y + 38 + 15 * i, line, size=11)

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])


def _walk(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Features that change slowly from token to token, as those of a text do: axis 1 is the tokens."""
    x = rng.standard_normal(shape)
    for t in range(1, shape[1]):
        x[:, t] = 0.93 * x[:, t - 1] + 0.37 * x[:, t]
    return x.astype(np.float32)


def selection() -> Picture:
    """Which keys each query reads: 64 queries and keys, 24 keys to a query, by the three kinds of lists."""
    tokens, cell, top = 64, 4, 58
    rng = np.random.default_rng(7)
    q, k = _walk(rng, 1, tokens, 4, 16), _walk(rng, 1, tokens, 1, 16)
    exact = {"backend": "reference"}
    queries = tessera.mass_select(q, k, topk=3, block_size=8, block_q=8, stride=2, init_blocks=0, **exact)
    rows = tessera.msa_select(q[:, :, :1], k, topk=3, block_size=8, **exact)
    lists = tessera.qsa_select_tokens(q, k.reshape(1, 32, 2, 16).mean(axis=2), budget=24, block_size=2, **exact)

    def of_blocks(ids: np.ndarray, row: int, key: int) -> bool:
        return key <= row and key // 8 in ids

    panels: list[tuple[str, str, Callable[[int, int], bool]]] = [
        (
            "a list per query block",
            "blocks of 8 keys: mass_select",
            lambda i, j: of_blocks(queries[0, 0, i // 8], i, j),
        ),
        ("a list per token and KV head", "blocks of 8 keys: msa_select", lambda i, j: of_blocks(rows[0, 0, i], i, j)),
        ("a list of tokens per token", "blocks of 2 keys: qsa_select_tokens", lambda i, j: j in lists[0, i]),
    ]
    picture = Picture(920, 372, "The keys that each query reads, for three kinds of lists")
    picture.parts.append('<g shape-rendering="crispEdges">')  # no lines between cells, at any size
    for p, (_, _, chosen) in enumerate(panels):
        left = 50 + 295 * p
        for i in range(tokens):
            picture.box(left, top + i * cell, (i + 1) * cell, cell)
            keys = [chosen(i, j) for j in range(tokens)]
            for first, end in _runs(keys):
                picture.box(left + first * cell, top + i * cell, (end - first) * cell, cell, ACCENT)
        picture.box(left, top, tokens * cell, tokens * cell, "none", GREY)
    picture.parts.append("</g>")
    for p, (name, how, _) in enumerate(panels):
        middle = 178 + 295 * p
        picture.text(middle, 24, name, bold=True)
        picture.text(middle, 42, how, size=11)
        picture.text(middle, top + 276, "keys →", size=11)
    picture.parts.append(
        f'<text transform="translate(38 {top + 128}) rotate(-90)" font-size="11" text-anchor="middle">← queries</text>'
    )
    for x, fill, words in (
        (170, ACCENT, "read"),
        (300, PALE, "visible, not read"),
        (500, PAPER, "not visible: after the query"),
    ):
        picture.box(x, 350, 12, 12, fill, GREY)
        picture.text(x + 18, 360, words, size=12, anchor="start")
    return picture


def _runs(marks: list[bool]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff([0, *marks, 0]))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def row() -> Picture:
    """What is computed for one query."""
    picture = Picture(920, 300, "One query: its list, the blocks it names, softmax over their keys, output and LSE")
    listed, own = (0, 3, 7), 7
    picture.text(30, 34, "list of the query", anchor="start", bold=True)
    for i, word in enumerate(("7", "0", "3", "0", "-1")):
        picture.box(30 + 34 * i, 44, 34, 26, PAPER, GREY)
        picture.text(47 + 34 * i, 62, word, fill=INK if i < 3 else GREY)
    picture.text(215, 62, "a set: order and repetition mean nothing, -1 is no block", size=12, anchor="start")
    picture.text(30, 112, "keys and values, N = 10 blocks of bs tokens", anchor="start", bold=True)
    for block in range(10):
        x = 30 + 62 * block
        picture.box(x, 122, 58, 40, PALE, GREY)
        if block in listed:
            picture.box(x, 122, 37 if block == own else 58, 40, ACCENT, GREY)
        picture.text(x + 29, 147, str(block), fill=PAPER if block in listed else INK)
    picture.text(662, 140, "the query's own block: keys up to itself", size=12, anchor="start")
    picture.text(662, 157, "pale: never part of the arithmetic", size=12, anchor="start")
    for block in listed:
        picture.arrow(59 + 62 * block - (10 if block == own else 0), 164, 190 + 25 * listed.index(block), 206)
    picture.card(90, 210, 220, 70, "scores", "s = softmax_scale · q·k, f32", "keys of the three blocks only")
    picture.arrow(310, 245, 356, 245)
    picture.card(360, 210, 250, 70, "online softmax", "m = max s,  l = Σ exp(s - m)", "o = Σ exp(s - m) v")
    picture.arrow(610, 245, 656, 245)
    picture.card(660, 210, 220, 70, "result", "out = o / l,  LSE = m + ln l", "no key at all: out 0, LSE -inf")
    return picture


def call() -> Picture:
    """The way of a call through the library."""
    picture = Picture(920, 330, "A call: Args, check, Problem, plan, kernel, ISA primitives")
    y, h = 100, 76
    cards = (
        ("Args", "tensor views, options", "src/api", PALE),
        ("check", "the only validation", "check.cc", PAPER),
        ("Problem", "raw pointers, sizes", "problem.h", PALE),
        ("plan", "pure function of sizes", "plan.cc", PAPER),
        ("kernel", "the algorithm, once", "kernel.h", PALE),
        ("ISA primitives", "load, fma, exp, dot", "src/isa", PAPER),
    )
    for i, (name, what, where, fill) in enumerate(cards):
        x = 20 + 150 * i
        picture.card(x, y, 130, h, name, what, where, fill=fill)
        if i:
            picture.arrow(x - 20, y + h / 2, x - 2, y + h / 2)
    picture.card(20, 16, 280, 56, "Python, C++ or C", "convert, call, raise: no mathematics")
    picture.arrow(85, 72, 85, 97)
    notes = (
        (155, 160, 235, "Status and message", "nothing has been written", "names operator, argument"),
        (455, 160, 535, "variant, tiles, splits", "workspace size;", "explain() shows it"),
        (
            625,
            275,
            685,
            "tasks on some executor",
            "pool, n threads, the host's loop, part i of n",
            "the same bits from each",
        ),
    )
    for x, w, above, name, *lines in notes:
        picture.arrow(above, y + h, above, 216)
        picture.card(x, 220, w, 70, name, *lines, fill=PAPER)
    picture.text(460, 318, "one folder of src/ops per operator; nothing calls back up", size=12)
    return picture


def pages() -> Picture:
    """Keys in pages: which slot a key lies in."""
    picture = Picture(920, 292, "Paged keys: a request's tokens, its page table, the pages")
    table, colour = (2, 5, -1, 0), (ACCENT, WARM, PAPER, GREY)
    picture.text(30, 34, "tokens of request b: 14 of them, 4 to a page", anchor="start", bold=True)
    for j in range(14):
        picture.box(30 + 34 * j, 44, 34, 26, colour[j // 4], GREY)
        picture.text(47 + 34 * j, 62, str(j), fill=INK if j // 4 == 2 else PAPER)
    picture.text(520, 62, "seqused_k[b] = 14", size=12, anchor="start")
    picture.text(564, 140, "page_table[b]", anchor="start", bold=True)
    for i, page in enumerate(table):
        picture.box(64 + 136 * i, 122, 68, 26, PAPER, GREY)
        picture.text(98 + 136 * i, 140, str(page))
        picture.arrow(98 + 136 * i, 72, 98 + 136 * i, 119)
        if page >= 0:
            picture.arrow(98 + 136 * i, 148, 98 + 145 * page, 207)
    picture.text(680, 132, "-1: no page. Keys 8 to 11", size=12, anchor="start")
    picture.text(680, 148, "do not exist for this call.", size=12, anchor="start")
    picture.text(30, 200, "pages", anchor="start", bold=True)
    for page in range(6):
        owner = table.index(page) if page in table else None
        for slot in range(4):
            used = owner is not None and owner * 4 + slot < 14
            picture.box(30 + 145 * page + 34 * slot, 210, 34, 26, colour[owner] if used else PALE, GREY)
            if used:
                picture.text(47 + 145 * page + 34 * slot, 228, str(owner * 4 + slot), fill=PAPER)
        picture.text(98 + 145 * page, 252, f"page {page}", size=11)
    picture.text(30, 280, "key j of request b: slot j % ps of page page_table[b, j // ps]", size=12, anchor="start")
    return picture


def merge() -> Picture:
    """Attention over split keys, joined."""
    picture = Picture(920, 214, "States of disjoint shards of keys, merged in order")
    for i, (name, keys) in enumerate(
        (("rank 0", "blocks 0 to 3"), ("rank 1", "blocks 4 to 7"), ("rank 2", "blocks 8 to 11"))
    ):
        y = 14 + 64 * i
        picture.card(30, y, 170, 52, name, keys)
        picture.arrow(200, y + 26, 246, y + 26)
        picture.card(
            250, y, 250, 52, "block_sparse_gqa_prefill_state", "o, l, m in f32: stops before the division", fill=PAPER
        )
        picture.arrow(500, y + 26, 557, 93 + 12 * i)
    picture.card(560, 72, 170, 66, "cp_merge", "M = max m", "summed in the order given")
    picture.arrow(730, 105, 756, 105)
    picture.card(760, 72, 130, 66, "out", "as if one had", "held all keys", fill=PAPER)
    return picture


FIGURES = {function.__name__: function for function in (selection, row, call, pages, merge)}


def draw(folder: Path) -> None:
    for name, figure in FIGURES.items():
        (folder / f"{name}.svg").write_text(str(figure()), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs/img")
