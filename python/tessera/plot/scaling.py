"""How time and speed go with the length of the context: a row per case."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tessera.bench.lines import Line, caption, common, differing, length, thousands
from tessera.plot.style import COLOURS, MUTED, label_ends

ARITHMETIC = ("bf16_dot", "f32_fma")  # the ceilings in GFLOP/s; the others are in GB/s
Points = list[tuple[float, float]]


def figure(lines: list[Line]) -> Figure:
    """lines: each measured at several lengths."""
    cases = list(dict.fromkeys(line["case"] for line in lines))
    height = 4.3 * len(cases)
    found = Figure(figsize=(13, height))
    grid = found.subplots(
        len(cases), 2, squeeze=False,
        gridspec_kw={"left": 0.06, "right": 0.89, "wspace": 0.75, "width_ratios": (1.1, 1), "hspace": 0.55,
                     "bottom": 0.62 / height, "top": 1 - 0.85 / height},
    )  # fmt: skip
    for (left, right), case in zip(grid, cases, strict=True):
        own = [line for line in lines if line["case"] == case]
        shared = common(own)
        _times(left, own, shared)
        _rates(right, own, shared)
        _title(left, f"{case}: time of a call", caption(shared))
    return found


def _title(axes: Axes, title: str, note: str) -> None:
    lines = textwrap.wrap(note, 80)
    axes.set_title(title, pad=16 + 13 * len(lines))
    axes.annotate(
        "\n".join(lines), (0, 1), xycoords="axes fraction", xytext=(0, 13), textcoords="offset points", fontsize=9.5,
        color=MUTED,
    )  # fmt: skip


def _series(lines: list[Line], shared: dict[str, str], value: Any) -> dict[str, Points]:
    """name -> (length, value) in order of length; of several measurements of one length the last."""
    series: dict[str, dict[float, float]] = {}
    for line in lines:
        number = value(line)
        if number is not None:
            series.setdefault(differing(line, shared), {})[length(line)] = number
    return {name: sorted(points.items()) for name, points in series.items()}


def _times(axes: Axes, lines: list[Line], shared: dict[str, str]) -> None:
    """Of the case in solid lines and of the peers in dashed ones, both axes logarithmic."""
    peers = list(dict.fromkeys(name for line in lines for name, peer in line["peers"].items() if peer["ms"]))
    own = _series(lines, shared, lambda line: line["ms"])
    drawn = {f"tessera, {name}" if name else "tessera": (points, "-") for name, points in own.items()}
    for peer in peers:
        times = _series(lines, shared, lambda line, peer=peer: line["peers"].get(peer, {}).get("ms"))
        for name, points in times.items():
            drawn[f"{peer.replace('_', ' ')}{', ' if name else ''}{name}"] = points, "--"
    _draw(axes, drawn)
    low, high = _round_limits(axes.dataLim.intervaly)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: duration(ms)))
    _finish(axes, drawn)


def _rates(axes: Axes, lines: list[Line], shared: dict[str, str]) -> None:
    """Of the case, and as dotted lines the ceilings that the same runs measured."""
    ceiling = lines[0]["ceiling"]
    gflops = lines[0]["gflops"] is not None and (not ceiling or ceiling["kind"] in ARITHMETIC)
    unit, name = ("GFLOP/s", "gflops") if gflops else ("GB/s", "gbps")
    own = _series(lines, shared, lambda line: line[name])
    if not own:
        axes.set_axis_off()
        return
    drawn = {text or "tessera": (points, "-") for text, points in own.items()}
    ceilings: dict[str, Points] = {}
    for text, points in _series(lines, shared, lambda line: _ceiling(line, gflops)).items():
        ceilings[text or "tessera"] = points
    _draw(axes, drawn)
    for text, points in ceilings.items():
        colour = COLOURS[list(drawn).index(text) % len(COLOURS)]
        axes.plot(*zip(*points, strict=True), ":", color=colour, linewidth=1.6, clip_on=False)
    top = max(y for points in [*own.values(), *ceilings.values()] for _, y in points)
    axes.set_ylim(0, 1.12 * top)
    _title(axes, f"Speed, {unit}", "dotted: the ceiling, measured beside each run" if ceilings else "")
    _finish(axes, drawn)


def _ceiling(line: Line, gflops: bool) -> float | None:
    """The measured ceiling that has the unit of the rate."""
    for ceiling in (line["ceiling"], line.get("arithmetic")):
        if ceiling and (ceiling["kind"] in ARITHMETIC) == gflops:
            return ceiling["value"]
    return None


def _draw(axes: Axes, drawn: dict[str, tuple[Points, str]]) -> None:
    for place, (points, dashes) in enumerate(drawn.values()):
        marker = "o" if dashes == "-" else "s"
        axes.plot(*zip(*points, strict=True), dashes, marker=marker, color=COLOURS[place % len(COLOURS)], clip_on=False,
                  markersize=6 if dashes == "-" else 4.5, linewidth=2.2 if dashes == "-" else 1.6)  # fmt: skip
    lengths = sorted({x for points, _ in drawn.values() for x, _ in points})
    axes.set_xlabel("context, tokens")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [thousands(int(x)) for x in lengths])
    axes.xaxis.set_minor_locator(NullLocator())


def _finish(axes: Axes, drawn: dict[str, tuple[Points, str]]) -> None:
    """Names the lines: right of their ends, or above, where others go on."""
    right = axes.get_xticks()[-1]
    ends = []
    for place, (name, (points, _)) in enumerate(drawn.items()):
        colour = COLOURS[place % len(COLOURS)]
        if points[-1][0] < right:
            axes.annotate(name, points[-1], xytext=(0, 9), textcoords="offset points", ha="right", fontsize=10,
                          color=colour)  # fmt: skip
        else:
            ends.append((*points[-1], name, colour))
    label_ends(axes, ends)


def _round_limits(ends: Sequence[float]) -> tuple[float, float]:
    """The nearest of 1, 2, 5, 10, ... below the smaller end and above the larger one."""
    steps = [step * 10.0**power for power in range(-9, 12) for step in (1, 2, 5)]
    return max(step for step in steps if step <= ends[0]), min(step for step in steps if step >= ends[1])


def duration(ms: float) -> str:
    """Of milliseconds, in the unit that leaves the fewest digits."""
    for unit, size in (("s", 1e3), ("ms", 1.0), ("µs", 1e-3)):
        if ms >= size:
            return f"{ms / size:g} {unit}"
    return f"{ms * 1e6:g} ns"
