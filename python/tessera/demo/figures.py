"""The figures of the report, as SVG to stand inside a page.

Their text keeps to the page's font and their colours are its variables, so that they follow it into the dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tessera.demo.quality import Quality
from tessera.demo.readers import DENSE, FRAMEWORK, Reader
from tessera.demo.session import Findings, all_points
from tessera.plot.maps import pixels
from tessera.plot.style import label_ends, style

# Colours of the drawing, which stand for variables of the page's style sheet.
_INK, _MUTED, _RULE = "#010101", "#020202", "#030303"
COLOURS = {
    "mass": "#040404",
    "moba": "#050505",
    "window": "#060606",
    "random": "#070707",
    "msa-indexer": "#080808",
    "qsa-indexer": "#090909",
}
_VARIABLES = {_INK: "ink", _MUTED: "muted", _RULE: "rule"} | {c: name for name, c in COLOURS.items()}

# Text stays text, in the page's font.
_STYLE = style(_INK, _MUTED, _RULE) | {"svg.fonttype": "none"}


def _svg(figure: Figure, title: str) -> str:
    """Without what a file of its own needs: declarations, metadata, name spaces and fixed sizes."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg[: (end := svg.index(">"))]) + svg[end:]
    svg = re.sub(r" ?font-family: [^;]*;", "", svg)
    for colour, name in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _panels(count: int, height: float, **options: object) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10.4, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.06, wspace=0.04)
    return figure, list(np.atleast_1d(figure.subplots(1, count, **options)))


def quality_against_budget(findings: Findings) -> str:
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "quality"}):
        figure, panels = _panels(3, 3.7)
        dense = findings.results[FRAMEWORK].quality
        _budget_panel(panels[0], findings, "Perplexity of the text", lambda q: q.ppl, {"dense": dense.ppl})
        for axes, passage in zip(panels[1:], findings.reading.passages, strict=True):
            name = passage.name
            levels = {"dense": dense.repeat[name], "when new": dense.first[name]}
            title = f"Passage {name}, {passage.back:,} back: loss"
            _budget_panel(axes, findings, title, lambda q, name=name: q.repeat[name], levels)
        return _svg(figure, "Perplexity and loss on repeated passages against the budget, for each selector")


def _budget_panel(
    axes: Axes, findings: Findings, title: str, value: Callable[[Quality], float], levels: dict[str, float]
) -> None:
    """One line per selector, and levels of dense attention. Random blocks far off the rest are an arrow and a number."""
    results = [result for result in findings.results.values() if result.reader.budget is not None]
    shown = [value(result.quality) for result in results if result.reader.selector != "random"] + list(levels.values())
    low, high = min(shown), max(shown)
    margin = max(high - low, 0.05 * high)
    axes.set_ylim(max(low - 0.12 * margin, 0), high + 0.25 * margin)
    budgets = sorted({result.reader.budget for result in results})
    left, right = budgets[0] / 1.2, budgets[-1] * 1.12
    ends = []
    for selector in findings.selectors:
        line = sorted((r.reader.budget, value(r.quality)) for r in results if r.reader.selector == selector)
        if end := _budget_line(axes, line, COLOURS[selector]):
            ends.append((right, end, _label(selector), COLOURS[selector]))
    for (name, level), dashes in zip(levels.items(), ("--", ":"), strict=False):
        axes.plot([left, right], [level, level], color=_INK, linewidth=1.3, linestyle=dashes)
        ends.append((right, level, name, _INK))
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
    axes.set_xlim(left, right)
    axes.set_xlabel("budget, tokens")
    axes.set_title(title, pad=22)
    label_ends(axes, ends)


def _budget_line(axes: Axes, line: list[tuple[int, float]], colour: str) -> float | None:
    """Returns the last value inside the axes, if there is one."""
    top = axes.get_ylim()[1]
    inside = [(x, y) for x, y in line if y <= top]
    for x, y in line:
        if y > top:
            axes.plot([x], [top], "^", color=colour, clip_on=False)
            axes.annotate(f"{y:.1f}", (x, top), xytext=(0, 6), textcoords="offset points", ha="center",
                          fontsize=9, color=colour, annotation_clip=False)  # fmt: skip
    if not inside:
        return None
    axes.plot(*zip(*inside, strict=True), "o-", color=colour, clip_on=False)
    return inside[-1][1]


def time_against_context(findings: Findings) -> str:
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "time"}):
        figure, panels = _panels(2, 3.9)
        points = all_points(findings)
        colours = {FRAMEWORK: _MUTED, DENSE: _INK} | {reader: COLOURS[reader.selector] for reader in findings.shown}
        for axes, title, what in zip(
            panels,
            ("Prefill, seconds", "Attention with selection, seconds"),
            ("prefill_s", "attention_s"),
            strict=True,
        ):
            ends = []
            for reader, colour in colours.items():
                line = [(p.tokens, getattr(p, what)) for p in points if p.reader == reader]
                axes.plot(*zip(*line, strict=True), "o-", color=colour, clip_on=False)
                ends.append((*line[-1], f"{line[-1][1]:.1f}  {_short(reader)}", colour))
            lengths = sorted({point.tokens for point in points})
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, lengths[-1])
            axes.set_xticks(lengths, [_thousands(tokens) for tokens in lengths])
            axes.set_xlabel("context, tokens")
            axes.set_title(title)
            label_ends(axes, ends)
        return _svg(figure, "Seconds of prefill and of attention against the length of the context")


def _label(selector: str) -> str:
    return selector.replace("-", " ")


def _short(reader: Reader) -> str:
    if reader.budget is not None:
        return f"{_label(reader.selector)}, {reader.budget:,}"
    return "framework" if reader == FRAMEWORK else "tessera, dense"


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def loss_by_position(findings: Findings) -> str:
    """Perplexity over dense, in per cent, along the text, at the budget where all are compared."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "position"}):
        figure, (axes,) = _panels(1, 3.2)
        dense = findings.results[FRAMEWORK].quality.buckets
        middle = [(bucket["from"] + bucket["to"]) / 2 for bucket in dense]
        ends = []
        for selector in findings.selectors:
            if selector == "random":  # far off the rest
                continue
            buckets = findings.results[Reader(selector, findings.featured.budget)].quality.buckets
            over = [100 * (b["ppl"] / d["ppl"] - 1) for b, d in zip(buckets, dense, strict=True)]
            axes.plot(middle, over, "o-", color=COLOURS[selector], clip_on=False)
            ends.append((middle[-1], over[-1], _label(selector), COLOURS[selector]))
        axes.axhline(0, color=_INK, linewidth=1.3, linestyle="--")
        if findings.featured.budget < dense[-1]["to"]:
            axes.axvline(findings.featured.budget, color=_MUTED, linewidth=1, linestyle=":")
            axes.annotate("budget", (findings.featured.budget, 1), xycoords=("data", "axes fraction"), xytext=(4, -10),
                          textcoords="offset points", fontsize=9.5, color=_MUTED)  # fmt: skip
        edges = [bucket["from"] for bucket in dense] + [dense[-1]["to"]]
        axes.set_xlim(0, edges[-1])
        axes.set_xticks(edges, [f"{edge:,}" for edge in edges])
        axes.set_xlabel("position in the text, tokens")
        axes.set_title(f"Perplexity over dense, per cent, at {findings.featured.budget:,} tokens")
        label_ends(axes, ends)
        return _svg(figure, "Perplexity over dense along the text")


def selected_blocks(findings: Findings, reader: Reader, most_heads: int = 4) -> str:
    """One map per KV head: a row per block of queries, a column per block. Frames: where each passage was read first."""
    lists = findings.lists[reader][:most_heads].numpy()
    heads, block = len(lists), reader.block_size
    blocks = -(-lists.shape[1] * reader.block_q // block)
    tokens = blocks * block
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": reader.selector, "axes.grid": False}):
        figure, panels = _panels(heads, 10.4 / heads + 0.3, sharey=True)
        for head, axes in enumerate(panels):
            image = pixels(lists[head], blocks, block, reader.block_q, together=block // reader.block_q)
            axes.imshow(image, interpolation="none", aspect="equal", origin="upper", extent=(0, tokens, tokens, 0))
            for passage in findings.reading.passages:
                at = (passage.first, passage.again)
                size = (passage.length, passage.length)
                axes.add_patch(Rectangle(at, *size, fill=False, edgecolor=_INK, linewidth=1.2, clip_on=False))
                axes.annotate(passage.name, (passage.first + passage.length / 2, passage.again), xytext=(0, 5),
                              textcoords="offset points", ha="center", fontsize=10, weight="bold")  # fmt: skip
            ticks = [tokens * part // 4 for part in range(5)]
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=9)
            axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=9)
            axes.spines[:].set_visible(False)
            axes.set_title(f"KV head {head}")
            axes.set_xlabel("keys, position")
        panels[0].set_ylabel("queries, position")
        return _svg(figure, f"Which blocks each KV head of one layer reads: {reader}")
