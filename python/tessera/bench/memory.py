"""Memory for caches of many gigabytes."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

import tessera
from tessera._tensors import numpy_dtype
from tessera.check.data import DTYPES, normal


def available_bytes() -> int | None:
    """What the machine can give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def on_huge_pages(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Zeros for which huge pages are asked: gathers would otherwise pay for translations of addresses, too."""
    element: Any = np.dtype(numpy_dtype(DTYPES[dtype]))
    count = math.prod(shape)
    # Private: memory that may be shared gets no huge pages.
    memory = mmap.mmap(-1, max(1, count * element.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, element, count).reshape(shape)


def random_caches(
    what: str, count: int, shape: tuple[int, ...], rng: np.random.Generator, dtype: str
) -> list[np.ndarray]:
    """`count` of `shape`. ValueError if they do not fit."""
    element: Any = np.dtype(numpy_dtype(DTYPES[dtype]))
    needed, free = count * math.prod(shape) * element.itemsize, available_bytes()
    if free is not None and needed > 0.9 * free:
        raise ValueError(
            f"{what} take {needed / 2**30:.1f} GiB of {free / 2**30:.1f} that are free; lower --batch or --seq"
        )
    caches = [on_huge_pages(shape, dtype) for _ in range(count)]
    for cache in caches:
        fill(cache, rng, dtype)
    return caches


def beyond_caches() -> int:
    """Bytes to read before any is read again, if none shall come out of the caches of all threads."""
    return max(2 * tessera.get_num_threads() * tessera.info()["cache_bytes"]["l3"], 1 << 28)


def fill(array: np.ndarray, rng: np.random.Generator, dtype: str) -> None:
    """N(0, 1), the same numbers again and again at distances that no page or block has."""
    flat = array.reshape(-1)
    values = normal(rng, (min(flat.size, (1 << 22) + 15),), dtype)
    for begin in range(0, flat.size, values.size):
        part = flat[begin : begin + values.size]
        part[...] = values[: part.size]
