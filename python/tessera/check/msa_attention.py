"""Calls of the operators with a list per row and KV head, and of the one for a single query block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import LOG_BOUND, out_share, share
from tessera.check.case import Case
from tessera.check.data import BAD_IDS, GROUPS, PAGE_SIZES, Pages, normal, packed_keys, packed_values, with_gaps


def _case(name: str, dtype: str, function: Callable[..., Any], inputs: tuple[np.ndarray, ...], **options: Any) -> Case:
    """A case of `function(q, k, v, lists, **options)` that returns (out, lse); `dtype` is that of k and v."""

    def truth() -> list[np.ndarray]:
        q, (k, v, lists) = inputs[0].astype(np.float32), inputs[1:]  # exact, and so is an f32 result
        exact = functools.partial(function, backend="reference", **options)
        return [x.astype(np.float64) for x in (*exact(q, k, v, lists), exact(q, k, np.abs(v), lists)[0])]

    def judge(result: Any, truth: list[np.ndarray]) -> float:
        want, want_lse, spread = truth
        return max(out_share(result[0], want, spread, dtype), share(result[1], want_lse, LOG_BOUND[dtype]))

    mixed = inputs[0].dtype != inputs[1].dtype
    return Case(name, functools.partial(function, *inputs, **options), truth, judge, optional=mixed)


@dataclass(frozen=True)
class Requests:
    """What a call looks like; `offset` per request, None: a request's last row meets its last key."""

    name: str
    rows: tuple[int, ...] = (9, 0, 1, 14)
    keys: tuple[int, ...] = (150, 20, 77, 10)  # the last request has more rows than keys
    kv_heads: int = 2
    group: int = 4
    dim: int = 64
    dim_v: int = 64
    block: int = 32
    width: int = 4
    page_size: int | None = None  # None: packed keys
    packed_layout: bool = False  # of the pages
    f32_queries: bool = False  # whatever the dtype of keys and values
    causal: bool = True
    gaps: bool = False
    invalid_only: bool = False
    offset: tuple[int, ...] | None = None
    scale: float | None = None
    nan_key: bool = False  # a visible value that is NaN: it must reach the rows that see it, and no other


# The sizes of pages: one key, blocks that begin inside a page, several pages to a block, several blocks to a page.
MSA_SHAPES = [
    Requests("model", rows=(6, 1), keys=(400, 300), group=16, dim=128, dim_v=128, block=128, width=3),
    Requests("odd sizes", group=5, dim=72, dim_v=24, block=17, width=6),
    *(Requests(f"group {n}", kv_heads=1, group=n) for n in GROUPS),
    *(Requests(f"pages of {n}", group=3, page_size=n) for n in PAGE_SIZES),
    *(Requests(f"packed layout, pages of {n}", group=3, dim=72, page_size=n, packed_layout=True) for n in PAGE_SIZES),
    *(Requests(f"packed layout, group {n}", kv_heads=1, group=n, page_size=64, packed_layout=True) for n in GROUPS),
    Requests("packed layout, odd dims", dim=71, dim_v=9, page_size=24, packed_layout=True),
    Requests("packed layout, nan in a key", nan_key=True, page_size=32, packed_layout=True),
    *(Requests(f"f32 queries, group {n}", group=n, f32_queries=True) for n in GROUPS),
    Requests("f32 queries, packed layout", group=3, page_size=64, packed_layout=True, f32_queries=True),
    Requests("pages, group 48", kv_heads=1, group=48, page_size=24),
    Requests("many blocks", rows=(2,), keys=(2300,), kv_heads=1, block=50, width=45),
    Requests("offsets", offset=(20, 5, -1, 1000)),
    Requests("not causal, strided", causal=False, gaps=True, page_size=20),
    Requests("no valid id", invalid_only=True),
    Requests("no key", keys=(0, 0, 0, 0)),
    Requests("negative scale", scale=-0.2),
    Requests("nan in a key", nan_key=True, page_size=24),
]
DECODE_SHAPES = [
    Requests("model", rows=(1, 1), keys=(400, 300), group=16, dim=128, dim_v=128, block=128, width=3, page_size=128),
    *(Requests(f"group {n}", rows=(1,) * 4, kv_heads=1, group=n, page_size=32) for n in GROUPS),
    *(
        Requests(f"packed layout, group {n}", rows=(1,) * 4, kv_heads=1, group=n, page_size=32, packed_layout=True)
        for n in GROUPS
    ),
    *(Requests(f"packed layout, pages of {n}", rows=(1,) * 4, page_size=n, packed_layout=True) for n in PAGE_SIZES),
    Requests("f32 queries", rows=(1,) * 4, group=16, page_size=32, f32_queries=True),
    Requests("three rows each", rows=(3,) * 4, page_size=24),
    Requests("many blocks", rows=(1,), keys=(2300,), kv_heads=1, block=50, width=45, page_size=16),
]


def _lists(rng: np.random.Generator, s: Requests) -> np.ndarray:
    """Valid ids and repetitions in any order among what must be skipped."""
    blocks = np.repeat([-(-n // s.block) for n in s.keys], s.rows)[:, None]
    shape = (s.kv_heads, sum(s.rows), s.width)
    ids = rng.integers(0, np.maximum(blocks, 1), shape, dtype=np.int32)
    keep = (rng.random(shape) < 0.8) & (blocks > 0) & (not s.invalid_only)
    return np.where(keep, ids, rng.choice([*BAD_IDS, 1 << 20], shape).astype(np.int32))


def _hide_nan(s: Requests, ids: np.ndarray, k: np.ndarray, v: np.ndarray, first: np.ndarray, key: np.ndarray) -> None:
    """Makes every key NaN that no list of its request and head selects: nobody may notice."""
    for b, head in np.ndindex(len(s.rows), s.kv_heads):
        unused = ~np.isin(np.arange(s.keys[b]) // s.block, ids[head, first[b] : first[b + 1]])
        k[key[b] : key[b + 1], head][unused] = np.nan
        v[key[b] : key[b + 1], head][unused] = np.nan


def _inputs(s: Requests, dtype: str) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    rng = np.random.default_rng(len(s.name) + s.group)
    q = normal(rng, (sum(s.rows), s.kv_heads * s.group, s.dim), "f32" if s.f32_queries else dtype)
    k = normal(rng, (sum(s.keys), s.kv_heads, s.dim), dtype)
    v = normal(rng, (sum(s.keys), s.kv_heads, s.dim_v), dtype)
    ids = _lists(rng, s)
    first, key = (np.cumsum((0, *n)).astype(np.int32) for n in (s.rows, s.keys))
    _hide_nan(s, ids, k, v, first, key)
    if s.nan_key:
        v[key[1] - 5] = np.nan
    options = {"block_size": s.block, "causal": s.causal, "softmax_scale": s.scale, "cu_seqlens_q": first}
    if s.page_size is None:
        options["cu_seqlens_k"] = key
    else:
        pages = Pages(rng, s.keys, s.page_size)
        k, v = (pages.hold(np.split(x, key[1:-1])) for x in (k, v))
        options |= pages.tables
        if s.packed_layout:
            k, v = packed_keys(k), packed_values(v)
    if s.gaps:
        q, k, v, ids = (with_gaps(x) for x in (q, k, v, ids))
    if s.offset is not None:
        options["q_offset"] = np.array(s.offset, np.int32)
    return (q, k, v, ids), options


def msa_attention(dtype: str) -> Iterator[Case]:
    for s in MSA_SHAPES:
        inputs, options = _inputs(s, dtype)
        yield _case(s.name, dtype, tessera.msa_sparse_attention, inputs, return_softmax_lse=True, **options)


def msa_decode(dtype: str) -> Iterator[Case]:
    for s in DECODE_SHAPES:
        s = replace(s, keys=s.keys[: len(s.rows)])
        inputs, options = _inputs(s, dtype)
        del options["cu_seqlens_q"]
        options |= {"seqlen_q": s.rows[0], "return_softmax_lse": True}
        yield _case(s.name, dtype, tessera.msa_sparse_decode_attention, inputs, **options)


def single_q(dtype: str) -> Iterator[Case]:
    """The last tokens of a sequence as one query block, with one list or one per head."""
    for name, rows, keys, width, gaps in (("model", 128, 400, 3, False), ("odd sizes", 13, 99, 5, True)):
        s = Requests(name, rows=(1,), keys=(keys,), kv_heads=3, width=width)
        rng = np.random.default_rng(rows)
        q, k, v = (normal(rng, (3, n, 64), dtype) for n in (rows, keys, keys))
        if gaps:
            q, k, v = (with_gaps(x) for x in (q, k, v))
        ids = _lists(rng, s)[:, 0]
        for what, lists in (("one list", ids[0]), ("a list per head", ids)):
            options = {"block_size": s.block, "return_lse": True}
            yield _case(f"{name}, {what}", dtype, tessera.block_sparse_attention_single_q, (q, k, v, lists), **options)
        wide = (q.astype(np.float32), k, v, ids)
        yield _case(f"{name}, f32 queries", dtype, tessera.block_sparse_attention_single_q, wide, **options)
