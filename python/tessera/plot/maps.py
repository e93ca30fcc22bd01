"""Which blocks the queries of each head attend to, as maps: a row per list, a column per block."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tessera.bench.lines import thousands
from tessera.plot.style import MUTED

SELECTED = np.array((0.90, 0.40, 0.08, 1.0))  # an orange that stands on light and on dark
VISIBLE = (0.5, 0.5, 0.5, 0.13)
MOST_HEADS = 4  # in a row


def pixels(lists: np.ndarray, blocks: int, block_size: int, block_q: int, together: int = 1) -> np.ndarray:
    """lists int32 [nQ, W] -> RGBA [nQ / together, blocks]: which blocks are selected, and which could be.

    A row shows `together` lists: the more of them have a block, the more of the colour of selected blocks it gets.
    """
    rows, size = -(-len(lists) // together), block_q * together
    image = np.zeros((rows, blocks, 4))
    last = (np.arange(rows) + 1) * size - 1 + blocks * block_size - rows * size
    image[np.arange(blocks) * block_size <= last[:, None]] = VISIBLE
    chosen = np.zeros((rows, blocks))
    places, slots = np.nonzero((lists >= 0) & (lists < blocks))
    np.add.at(chosen, (places // together, lists[places, slots]), 1)
    members = np.minimum(together, len(lists) - together * np.arange(rows))
    share = np.minimum(chosen / members[:, None], 1)[..., None]
    return (1 - share) * image + share * SELECTED


def draw_map(axes: Axes, lists: np.ndarray, block_size: int, block_q: int, blocks: int, name: str) -> None:
    keys, queries = blocks * block_size, len(lists) * block_q
    first = keys - queries
    axes.imshow(pixels(lists, blocks, block_size, block_q), interpolation="none", aspect="equal" if not first else "auto",
                origin="upper", extent=(0, keys, keys, first))  # fmt: skip
    axes.set_xticks(*_ticks(0, blocks, block_size))
    axes.set_yticks(*_ticks(first, len(lists), block_q))
    axes.tick_params(labelsize=9)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.set_title(name)
    axes.set_xlabel("keys, position")


def _ticks(first: int, count: int, size: int) -> tuple[list[int], list[str]]:
    """Where blocks begin or end, at most five of `count` blocks of `size`."""
    places = sorted({first + count * part // 4 * size for part in range(5)})
    return places, [thousands(place) for place in places]


def figure(selections: list[dict[str, Any]]) -> Figure:
    """selections: as `selection_of` returns them."""
    parts = [(s, head) for s in selections for head in range(len(s["lists"]))]
    columns = min(MOST_HEADS, max(len(s["lists"]) for s in selections))
    rows = sum(-(-len(s["lists"]) // columns) for s in selections)
    found = Figure(figsize=(3.3 * columns + 0.9, 3.75 * rows + 0.3), layout="constrained")
    grid = found.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    row = -1
    for selection, head in parts:
        column = head % columns
        row += column == 0
        axes = grid[row, column]
        axes.set_axis_on()
        lists, sizes = selection["lists"][head], (selection["block_size"], selection["block_q"])
        blocks = max(int(selection["lists"].max()) + 1, -(-len(lists) * sizes[1] // sizes[0]))
        draw_map(axes, lists, *sizes, blocks, f"KV head {head}")
        if column == 0:
            axes.set_ylabel("queries, position")
    titles = [*(s["title"] for s in selections if s["title"]), "orange: selected blocks; grey: blocks that could be"]
    found.suptitle("\n".join(titles) + "\n", x=0.01, ha="left", fontsize=10, color=MUTED)
    return found


def selection_of(line: dict[str, Any]) -> dict[str, Any]:
    """The checked "selection" of a line. ValueError: what is wrong with it."""
    selection = line["selection"]
    try:
        lists = np.asarray(selection["lists"], np.int32)
        sizes = {name: int(selection[name]) for name in ("block_size", "block_q")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a selection has lists, block_size and block_q: {error}") from None
    if lists.ndim == 2:
        lists = lists[None]
    if lists.ndim != 3 or not lists.size or min(sizes.values()) < 1:
        raise ValueError("a selection has lists [heads, lists, entries], a block_size and a block_q")
    return {"lists": lists, **sizes, "title": str(selection.get("title", ""))}
