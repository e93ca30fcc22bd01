"""Lists as pairs (row, block), which all formats are made from: row counts the lists of an array in C order."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tessera._tensors import to_numpy

LISTS = {3: "[B, nQ, W]", 4: "[B, Hkv, nQ, W]"}


def read(op: str, name: str, value: Any, shapes: dict[int, str], dtypes: tuple[str, ...] = ("int32",)) -> np.ndarray:
    """The argument as NumPy; `shapes` are the accepted ones by their number of axes."""
    array = to_numpy(value)
    if array.dtype.name not in dtypes:
        raise TypeError(f"{op}: {name} is {array.dtype}; expected {' or '.join(dtypes)}")
    if array.ndim not in shapes:
        raise ValueError(f"{op}: {name} has {array.ndim} axes; expected {' or '.join(shapes.values())}")
    return array


def block_counts(op: str, num_blocks: Any, requests: int) -> np.ndarray:
    """int64 [B]."""
    counts = to_numpy(num_blocks)
    if counts.dtype.kind not in "iu":
        raise TypeError(f"{op}: num_blocks is {counts.dtype}; expected an int or integers [B]")
    if counts.shape not in ((), (requests,)):
        raise ValueError(f"{op}: num_blocks has shape {counts.shape}; expected an int or [{requests}]")
    if (counts < 0).any():
        raise ValueError(f"{op}: num_blocks is {counts.min()}; expected at least 0")
    return np.broadcast_to(counts.astype(np.int64), requests)


def once(row: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once, by row, then block."""
    key = np.sort(row.astype(np.int64) << 32 | block)
    key = key[np.diff(key, prepend=-1) != 0]  # np.unique takes twenty times as long
    return key >> 32, key & 0xFFFFFFFF


def pairs(op: str, lists: np.ndarray, num_blocks: Any) -> tuple[np.ndarray, np.ndarray]:
    """The sets of lists [B, ..., W] as `once` gives them."""
    counts = block_counts(op, num_blocks, len(lists))
    keep = (lists >= 0) & (lists < counts.reshape(-1, *[1] * (lists.ndim - 1)))
    row, _ = np.nonzero(keep.reshape(prod(lists.shape[:-1]), lists.shape[-1]))
    return once(row, lists[keep])


def fill(op: str, row: np.ndarray, block: np.ndarray, shape: tuple[int, ...], width: int | None) -> np.ndarray:
    """Lists int32 [*shape, width] from pairs as `once` gives them."""
    counts = np.bincount(row, minlength=prod(shape))
    longest = int(counts.max(initial=0))
    if width is not None and width < longest:
        raise ValueError(f"{op}: width is {width}; a list has {longest} blocks")
    lists = np.full((counts.size, longest if width is None else width), -1, np.int32)
    lists[row, np.arange(row.size) - (np.cumsum(counts) - counts)[row]] = block
    return lists.reshape(*shape, lists.shape[1])
