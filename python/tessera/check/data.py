"""Random tensors in NumPy, of the library's three types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tessera._tensors import numpy_dtype

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
PAGE_SIZES = (1, 3, 16, 24, 64, 128, 256)  # of which some hold parts of blocks, and some hold several
GROUPS = (1, 3, 5, 16, 48)
BAD_IDS = (-1, np.iinfo(np.int32).min, np.iinfo(np.int32).max)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """N(0, 1) in `dtype` (bf16, f16, f32), made piece by piece, so that little more memory than the result is needed."""
    result = np.empty(shape, numpy_dtype(DTYPES[dtype]))
    flat = result.reshape(-1)
    piece = 1 << 22
    for begin in range(0, flat.size, piece):
        part = flat[begin : begin + piece]
        part[...] = rng.standard_normal(part.size, dtype=np.float32)
    return result


def with_gaps(array: np.ndarray) -> np.ndarray:
    """The same values in a view with the two axes before the last swapped in memory, a pitch, and an offset."""
    order = (*range(array.ndim - 3), array.ndim - 2, array.ndim - 3, array.ndim - 1)
    shape = [array.shape[axis] for axis in order]
    room = np.zeros((*shape[:-1], shape[-1] + 5), array.dtype)
    view = room[..., 3 : 3 + shape[-1]].transpose(order)
    view[...] = array
    return view


class Pages:
    """Where the keys of requests lie in pages in random order, some of which nobody uses."""

    def __init__(self, rng: np.random.Generator, keys: Sequence[int], size: int) -> None:
        self.keys, self.size = keys, size
        counts = [-(-n // size) for n in keys]
        self.count = sum(counts) + 3
        order = iter(rng.permutation(self.count))
        table = np.full((len(keys), max(counts, default=0) + 1), -1, np.int32)
        for row, n in zip(table, counts, strict=True):
            row[:n] = [next(order) for _ in range(n)]
        self.tables: dict[str, Any] = {"page_table": table, "seqused_k": np.array(keys, np.int32)}

    def hold(self, arrays: Iterable[np.ndarray]) -> np.ndarray:
        """[P, heads, size, dim] of one [keys, heads, dim] per request; slots without a key are NaN."""
        arrays = list(arrays)
        pages = np.full((self.count, arrays[0].shape[1], self.size, arrays[0].shape[2]), np.nan, arrays[0].dtype)
        for array, row in zip(arrays, self.tables["page_table"], strict=True):
            for j in range(0, array.shape[0], self.size):
                part = array[j : j + self.size]
                pages[row[j // self.size], :, : part.shape[0]] = part.swapaxes(0, 1)
        return pages


def packed_keys(pages: np.ndarray) -> np.ndarray:
    """[P, H, size, D] in the packed layout of `append_kv`; what no feature owns is NaN."""
    e = 4 // pages.itemsize
    count, heads, size, dim = pages.shape
    room = np.full((count, heads, size, -(-dim // e) * e), np.nan, pages.dtype)
    room[..., :dim] = pages
    return np.ascontiguousarray(room.reshape(count, heads, size, -1, e).swapaxes(2, 3))


def packed_values(pages: np.ndarray) -> np.ndarray:
    """The same of values; what no slot owns is NaN."""
    e = 4 // pages.itemsize
    count, heads, size, dim = pages.shape
    room = np.full((count, heads, -(-size // e) * e, dim), np.nan, pages.dtype)
    room[:, :, :size] = pages
    return np.ascontiguousarray(room.reshape(count, heads, -1, e, dim).swapaxes(3, 4))
