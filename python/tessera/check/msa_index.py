"""Calls of the indexer: block scores, and selections by them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import share
from tessera.check.case import Case
from tessera.check.data import GROUPS, PAGE_SIZES, Pages, normal, packed_keys, with_gaps
from tessera.check.selection import INVISIBLE, SCORE_BOUND, Scores, tiers


@dataclass(frozen=True)
class Requests:
    """What a call looks like; `offset` per request, None: a request's last row meets its last key."""

    name: str
    rows: tuple[int, ...] = (9, 0, 1, 14)
    keys: tuple[int, ...] = (150, 20, 77, 10)  # the last request has more rows than keys
    heads: int = 4
    key_heads: int = 1
    dim: int = 64
    block: int = 16
    page_size: int | None = None  # None: packed keys
    packed_layout: bool = False  # of the pages
    topk: int = 4
    local_blocks: int = 1
    init_blocks: int = 0
    reduce_heads: bool = False
    gaps: bool = False
    offset: tuple[int, ...] | None = None
    equal: bool = False  # all keys are the same, so that every score ties
    bad_pages: bool = False  # some pages do not exist
    nan_key: bool = False  # a visible key that is NaN: it must reach the rows that see it, and no other


# The sizes of pages: one key, blocks that begin inside a page, several pages to a block, several blocks to a page.
INDEX_SHAPES = [
    Requests("model", rows=(13, 1), keys=(2200, 2100), dim=128, block=128, page_size=128, topk=16),
    Requests("packed, model", rows=(30,), keys=(2300,), dim=128, block=128, topk=16),
    Requests("odd sizes", dim=72, block=17, gaps=True),
    *(Requests(f"{n} index heads", heads=n) for n in (1, 2, 5, 48)),
    *(Requests(f"blocks of {n}", block=n, topk=2) for n in (1, 8, 24, 128, 200)),
    *(Requests(f"pages of {n}", page_size=n) for n in PAGE_SIZES),
    *(Requests(f"packed layout, pages of {n}", page_size=n, packed_layout=True) for n in PAGE_SIZES),
    *(Requests(f"packed layout, {n} index heads", heads=n, page_size=64, packed_layout=True) for n in GROUPS),
    Requests("packed layout, key head per head, odd dim", key_heads=4, dim=71, page_size=24, packed_layout=True),
    Requests("key head per head", key_heads=4, page_size=24, gaps=True),
    Requests("reduced", reduce_heads=True),
    Requests("reduced, key head per head", key_heads=4, reduce_heads=True, gaps=True),
    Requests("many blocks", rows=(2,), keys=(9000,), dim=8, block=4, topk=20),
    Requests("offsets", offset=(100, 5, -1, 1000)),
    Requests("ties", equal=True, init_blocks=1, local_blocks=2),
    Requests("nothing forced", local_blocks=0),
    Requests("more than there are", topk=12),
    Requests("no key", keys=(0, 0, 0, 0)),
    Requests("bad pages", page_size=16, bad_pages=True),
    Requests("nan in a key", nan_key=True, page_size=24),
]


def _inputs(s: Requests, dtype: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(len(s.name) + s.block)
    q = normal(rng, (sum(s.rows), s.heads, s.dim), dtype)
    k = normal(rng, (sum(s.keys), s.key_heads, s.dim), dtype)
    if s.equal:
        k[1:] = k[:1]
    first, key = (np.cumsum((0, *n)).astype(np.int32) for n in (s.rows, s.keys))
    if s.nan_key:
        k[key[1] - 5] = np.nan
    options: dict[str, Any] = {"block_size": s.block, "cu_seqlens_q": first, "reduce_heads": s.reduce_heads}
    if s.page_size is None:
        options["cu_seqlens_k"] = key
    else:
        pages = Pages(rng, s.keys, s.page_size)
        k = pages.hold(np.split(k, key[1:-1]))
        options |= pages.tables
        k = packed_keys(k) if s.packed_layout else k
        if s.bad_pages:
            table = options["page_table"]
            table[rng.random(table.shape) < 0.3] = rng.choice([-1, 1 << 20, np.iinfo(np.int32).min])
    if s.gaps:
        q, k = with_gaps(q), with_gaps(k)
    if s.offset is not None:
        options["q_offset"] = np.array(s.offset, np.int32)
    return q, k, options


@dataclass
class Truth:
    """f64 [heads, rows, N], and for a selection its lists."""

    value: np.ndarray
    magnitude: np.ndarray
    lists: np.ndarray | None = None


def _scores(q: np.ndarray, k: np.ndarray, options: dict[str, Any]) -> Truth:
    exact = functools.partial(tessera.msa_block_scores, backend="reference", **options)
    value, magnitude = exact(q, k), exact(np.abs(q), np.abs(k))
    return Truth(value.astype(np.float64), magnitude.astype(np.float64))


def msa_block_scores(dtype: str) -> Iterator[Case]:
    def judge(got: Any, truth: Truth) -> float:
        return share(got, truth.value, SCORE_BOUND * truth.magnitude)

    for s in INDEX_SHAPES:
        q, k, options = _inputs(s, dtype)
        call = functools.partial(tessera.msa_block_scores, q, k, **options)
        yield Case(s.name, call, functools.partial(_scores, q, k, options), judge)


def msa_select(dtype: str) -> Iterator[Case]:
    for s in INDEX_SHAPES:
        q, k, options = _inputs(s, dtype)
        rule = {"topk": s.topk, "local_blocks": s.local_blocks, "init_blocks": s.init_blocks}
        call = functools.partial(tessera.msa_select, q, k, **options, **rule)

        def truth(q: np.ndarray = q, k: np.ndarray = k, options: dict[str, Any] = options, call: Any = call) -> Truth:
            scores = _scores(q, k, options)
            scores.lists = call(backend="reference")
            return scores

        yield Case(s.name, call, truth, functools.partial(_judge_lists, s))


def _judge_lists(s: Requests, got: Any, truth: Truth) -> float:
    worst = 0.0
    row = 0
    for b, (rows, keys) in enumerate(zip(s.rows, s.keys, strict=True)):
        first = keys - rows if s.offset is None else s.offset[b]
        blocks = -(-keys // s.block)
        for t in range(rows):
            tier = np.full(truth.value.shape[2], INVISIBLE)
            tier[:blocks] = tiers(np.array([first + t]), blocks, s.block, s.local_blocks, s.init_blocks)
            for head in range(got.shape[0]):
                scores = Scores(tier, truth.value[head, row], truth.magnitude[head, row])
                worst = max(worst, scores.share(got[head, row], truth.lists[head, row]))
            row += 1
    return worst
