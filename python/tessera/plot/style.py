"""What all figures look like, those of the demo's report included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

INK, MUTED, RULE = "#1f2430", "#5b6472", "#dfe3e8"
# Told apart by those who confuse red and green, too, and dark enough for text.
COLOURS = ("#c8500a", "#1f6fb2", "#2a8a57", "#8a4fbf", "#a8781a", "#b3366b", "#3b7f8f", "#6f6f6f")


def style(ink: str = INK, muted: str = MUTED, rule: str = RULE) -> dict[str, Any]:
    """For `matplotlib.rc_context`: colours of text, of what is less important, and of lines in the background."""
    return {
        "font.size": 11,
        "text.color": ink,
        "axes.edgecolor": rule,
        "axes.labelcolor": muted,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlepad": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": rule,
        "grid.linewidth": 0.8,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "lines.linewidth": 2.2,
        "lines.markersize": 6,
        "lines.solid_capstyle": "round",
    }


def label_ends(axes: Axes, ends: Iterable[tuple[float, float, str, str]], gap: float = 0.07) -> None:
    """Names of lines, right of their last points (x, y), moved apart where they would lie upon one another.

    ends: (x, y, name, colour). gap: the least distance of two names as a share of the height. Call it when the limits and
    the scales of the axes are final.
    """
    axes.get_xlim(), axes.get_ylim()  # limits that follow the data are brought up to date only when asked for
    to_axes = axes.transData + axes.transAxes.inverted()
    places = sorted(((*to_axes.transform((x, y)), name, colour) for x, y, name, colour in ends), key=lambda p: p[1])
    heights = spread([y for _, y, _, _ in places], gap)
    for (x, _, name, colour), y in zip(places, heights, strict=True):
        axes.annotate(
            name, (x, y), xycoords="axes fraction", xytext=(9, 0), textcoords="offset points", va="center",
            color=colour, fontsize=10, annotation_clip=False,
        )  # fmt: skip


def spread(heights: list[float], gap: float) -> list[float]:
    """Ascending heights moved apart to at least `gap`, those that touch around the middle of where they were."""
    groups: list[tuple[float, int]] = []  # (middle, members)
    for height in heights:
        middle, members = height, 1
        while groups and middle - gap * (members - 1) / 2 < groups[-1][0] + gap * (groups[-1][1] - 1) / 2 + gap:
            before, count = groups.pop()
            middle = (middle * members + before * count) / (members + count)
            members += count
        groups.append((middle, members))
    return [middle + gap * (place - (members - 1) / 2) for middle, members in groups for place in range(members)]
