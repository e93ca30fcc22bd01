"""Calls of block_sparse_gqa_prefill, and of its form that gives states."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import AttentionTruth
from tessera.check.case import Case
from tessera.check.data import BAD_IDS, PAGE_SIZES, Pages, normal, packed_keys, packed_values, with_gaps


@dataclass(frozen=True)
class Shape:
    """What a call looks like; `offset` per request, None: the last query meets the last key."""

    name: str
    queries: int = 65
    keys: int = 129
    kv_heads: int = 2
    group: int = 2
    dim: int = 64
    dim_v: int = 64
    block: int = 32
    block_q: int = 32
    width: int = 4
    requests: int = 1
    per_head: bool = False
    causal: bool = True
    gaps: bool = False
    invalid_only: bool = False
    offset: tuple[int, ...] | None = None
    scale: float | None = None
    nan_key: int | None = None  # a visible value that is NaN: it must reach the rows that see it, and no other
    page_size: int | None = None
    packed_layout: bool = False  # of the pages


ATTENTION_SHAPES = [
    Shape("model", queries=200, keys=333, group=16, dim=128, dim_v=128, block=128, block_q=128, width=3),
    Shape("dim 80", queries=129, keys=300, kv_heads=1, group=4, dim=80, dim_v=80, block=64, block_q=64),
    Shape("odd sizes", queries=70, keys=131, kv_heads=1, group=5, dim=72, dim_v=24, block=17, block_q=7, width=5),
    Shape("list per token and head", queries=33, keys=97, requests=2, group=3, block=5, block_q=1, per_head=True),
    Shape("strided", gaps=True, causal=False, dim=40, dim_v=136),
    Shape("offsets", queries=40, keys=100, requests=4, offset=(60, -100, 30, 1000), per_head=True),
    Shape("more queries than keys", queries=97, keys=50, block=16),
    Shape("decode", queries=1, keys=4300, kv_heads=1, group=8, block=100, block_q=1, width=40),
    Shape("no valid id", invalid_only=True),
    Shape("no key", keys=0),
    Shape("negative scale", scale=-0.2),
    Shape("nan in a key", nan_key=77),
    Shape("pages of 1", keys=70, page_size=1),
    Shape("pages of 24", requests=2, offset=(60, 3), page_size=24, gaps=True),
    Shape("pages of 128", group=16, block=64, block_q=64, keys=300, page_size=128),
    *(Shape(f"packed layout, pages of {n}", group=3, page_size=n, packed_layout=True) for n in PAGE_SIZES),
]


def _ids(rng: np.random.Generator, s: Shape, blocks: int) -> np.ndarray:
    """Valid ids and repetitions in any order among what must be skipped."""
    lists = -(-s.queries // s.block_q)
    shape = (s.requests, s.kv_heads, lists, s.width) if s.per_head else (s.requests, lists, s.width)
    ids = rng.integers(0, max(blocks, 1), shape, dtype=np.int32)
    keep = np.zeros(shape, bool) if s.invalid_only or blocks == 0 else rng.random(shape) < 0.8
    return np.where(keep, ids, rng.choice([*BAD_IDS, blocks], shape).astype(np.int32))


def _hide_nan(s: Shape, ids: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Makes every key NaN that no list of its request and head selects: nobody may notice."""
    block = np.arange(s.keys) // s.block
    lists = ids if s.per_head else np.broadcast_to(ids[:, None], (ids.shape[0], s.kv_heads, *ids.shape[1:]))
    for b, head in np.ndindex(s.requests, s.kv_heads):
        unused = ~np.isin(block, lists[b, head])
        k[b, unused, head] = np.nan
        v[b, unused, head] = np.nan


@functools.cache  # two operators take the same
def _attention_inputs(s: Shape, dtype: str) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    rng = np.random.default_rng(len(s.name) + s.keys)
    q = normal(rng, (s.requests, s.queries, s.kv_heads * s.group, s.dim), dtype)
    k = normal(rng, (s.requests, s.keys, s.kv_heads, s.dim), dtype)
    v = normal(rng, (s.requests, s.keys, s.kv_heads, s.dim_v), dtype)
    ids = _ids(rng, s, -(-s.keys // s.block))
    _hide_nan(s, ids, k, v)
    if s.nan_key is not None:
        v[:, s.nan_key] = np.nan
    options = {"block_size": s.block, "block_q": s.block_q, "causal": s.causal, "softmax_scale": s.scale}
    if s.page_size is not None:
        pages = Pages(rng, [s.keys] * s.requests, s.page_size)
        k, v = pages.hold(k), pages.hold(v)
        options |= pages.tables
        if s.packed_layout:
            k, v = packed_keys(k), packed_values(v)
    if s.gaps:
        q, k, v = with_gaps(q), with_gaps(k), with_gaps(v)
    if s.offset is not None:
        options["q_offset"] = np.array(s.offset, np.int32)
    return (q, k, v, ids), options


@functools.cache
def _attention_truth(s: Shape, dtype: str) -> AttentionTruth:
    inputs, options = _attention_inputs(s, dtype)
    return AttentionTruth(*inputs, **options)


def attention(dtype: str) -> Iterator[Case]:
    def judge(result: Any, truth: AttentionTruth) -> float:
        out, lse = result
        return max(truth.out_share(out, dtype), truth.lse_share(lse, dtype))

    for s in ATTENTION_SHAPES:
        inputs, options = _attention_inputs(s, dtype)
        call = functools.partial(tessera.block_sparse_gqa_prefill, *inputs, return_lse=True, **options)
        yield Case(s.name, call, functools.partial(_attention_truth, s, dtype), judge)


def attention_state(dtype: str) -> Iterator[Case]:
    for s in ATTENTION_SHAPES:
        inputs, options = _attention_inputs(s, dtype)
        call = functools.partial(tessera.block_sparse_gqa_prefill_state, *inputs, **options)
        truth = functools.partial(_attention_truth, s, dtype)
        yield Case(s.name, call, truth, lambda state, truth: truth.state_share(*state, dtype))
