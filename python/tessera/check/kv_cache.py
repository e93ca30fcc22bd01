"""Calls that write paged caches: bits are moved, so any other bit is wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.case import Case
from tessera.check.data import BAD_IDS, PAGE_SIZES, normal, packed_keys, packed_values


@dataclass(frozen=True)
class Rows:
    """What a call looks like."""

    name: str
    page_size: int
    packed_layout: bool
    rows: int = 90
    pages: int = 7
    heads: int = 3
    dim: int = 64
    dim_v: int | None = 40  # None: keys alone


LAYOUTS = ((False, "row-major"), (True, "packed layout"))
ROWS = [
    *(Rows(f"{name}, pages of {n}", n, packed) for packed, name in LAYOUTS for n in PAGE_SIZES),
    *(Rows(f"{name}, odd dims", 24, packed, dim=71, dim_v=9) for packed, name in LAYOUTS),
    *(Rows(f"{name}, keys alone", 64, packed, dim_v=None) for packed, name in LAYOUTS),
]


def _append(s: Rows, k: np.ndarray, v: np.ndarray | None, slots: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The caches that a call leaves, as bits."""
    shape = (s.pages, s.heads, s.page_size)
    caches = [np.full((*shape, x.shape[2]), 7, x.dtype) for x in (k, v) if x is not None]
    if s.packed_layout:
        caches = [pack(x) for pack, x in zip((packed_keys, packed_values), caches, strict=False)]
    tessera.append_kv(k, v, slots, *caches, **options)
    return [x.view(f"u{x.itemsize}") for x in caches]


def append_kv(dtype: str) -> Iterator[Case]:
    def judge(got: list[np.ndarray], want: list[np.ndarray]) -> float:
        return 0.0 if all(map(np.array_equal, got, want)) else np.inf

    for s in ROWS:
        rng = np.random.default_rng(s.page_size)
        k = normal(rng, (s.rows, s.heads, s.dim), dtype)
        v = None if s.dim_v is None else normal(rng, (s.rows, s.heads, s.dim_v), dtype)
        slots = rng.integers(0, s.pages * s.page_size, s.rows, dtype=np.int32)  # some twice
        slots[: s.rows // 2] = np.arange(3, 3 + s.rows // 2)  # a run, beyond the end of small caches
        slots[::9] = rng.choice([*BAD_IDS, s.pages * s.page_size], slots[::9].size)
        call = functools.partial(_append, s, k, v, slots)
        yield Case(s.name, call, functools.partial(call, backend="reference"), judge)
