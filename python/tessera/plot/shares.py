"""Which share of its ceiling each measurement reaches, as bars."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tessera.bench.lines import Line, caption, common, differing, length, thousands
from tessera.plot.style import COLOURS, INK, MUTED

KINDS = {
    "f32_fma": ("f32 arithmetic", "GFLOP/s", COLOURS[0]),
    "bf16_dot": ("bf16 arithmetic", "GFLOP/s", COLOURS[3]),
    "gather": ("reads of the same pieces of memory", "GB/s", COLOURS[1]),
    "stream": ("reads of memory in order", "GB/s", COLOURS[2]),
}


def figure(lines: list[Line]) -> Figure:
    """lines: those that have a ceiling."""
    cases = {case: [line for line in lines if line["case"] == case] for case in dict.fromkeys(x["case"] for x in lines)}
    found = Figure(figsize=(10.4, 0.42 * len(lines) + 0.34 * len(cases) + 1.5), layout="constrained")
    axes = found.subplots()
    place = 0.0
    names: dict[float, str] = {}
    for case, own in cases.items():
        shared = common(own)
        title = axes.text(0, place, case, weight="bold", va="center")
        words = textwrap.wrap(caption(shared), 88)
        axes.annotate("\n".join(words), (1, 1), xycoords=title, xytext=(10, 0), textcoords="offset points",
                      va="top", fontsize=9, color=MUTED)  # fmt: skip
        place += 0.9 + 0.35 * (len(words) - 1)
        for line in sorted(own, key=lambda line: (differing(line, shared), length(line))):
            _bar(axes, place, line["ceiling"], line.get("arithmetic"))
            names[place] = ", ".join(filter(None, (thousands(length(line)), differing(line, shared))))
            place += 1
        place += 0.45
    axes.set_ylim(place - 0.5, -0.7)
    axes.set_yticks(list(names), list(names.values()), color=INK)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x")
    axes.set_xlim(0, 1.2)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
    axes.axvline(1, color=MUTED, linewidth=1.2, linestyle=":")
    axes.set_ylabel("context, tokens")
    axes.set_xlabel("share of the ceiling that the same run measured")
    kinds = [kind for kind in KINDS if any(line["ceiling"]["kind"] == kind for line in lines)]
    lesser = dict.fromkeys(line["arithmetic"]["kind"] for line in lines if line.get("arithmetic"))
    found.legend(
        [*(Patch(color=KINDS[kind][2]) for kind in kinds), *(Line2D([], [], color=KINDS[kind][2]) for kind in lesser)],
        [*(f"share of {KINDS[kind][0]}" for kind in kinds), *(f"share of {KINDS[kind][0]} as well" for kind in lesser)],
        loc="outside upper left", ncols=2, frameon=False, fontsize=10, handlelength=1.1, handleheight=1.0,
    )  # fmt: skip
    return found


def _bar(axes: Axes, place: float, ceiling: dict[str, Any], arithmetic: dict[str, Any] | None) -> None:
    """The share stands in the bar if there is room; what it is a share of, right of all bars. That of arithmetic is a line."""
    _, unit, colour = KINDS[ceiling["kind"]]
    share = ceiling["share"]
    axes.barh(place, min(share, 1.17), height=0.66, color=colour)
    if arithmetic:
        at = min(arithmetic["share"], 1.17)
        axes.plot([at, at], [place - 0.33, place + 0.33], color=KINDS[arithmetic["kind"]][2], linewidth=2.5)
    inside = share > 0.1
    axes.annotate(
        f"{share:.2f}", (min(share, 1), place), xytext=(-6 if inside else 6, 0), textcoords="offset points",
        ha="right" if inside else "left", va="center", weight="bold", color="white" if inside else INK,
    )  # fmt: skip
    axes.annotate(f"of {ceiling['value']:.3g} {unit}", (1, place), xycoords=axes.get_yaxis_transform(), va="center",
                  ha="right", fontsize=9.5, color=MUTED)  # fmt: skip
