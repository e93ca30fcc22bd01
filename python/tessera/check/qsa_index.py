"""Calls of QSA's indexer: scores of compressed keys, and selections by them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import share
from tessera.check.case import Case
from tessera.check.data import Pages, normal, with_gaps
from tessera.check.selection import BY_SCORE, INVISIBLE, SCORE_BOUND, Scores


@dataclass(frozen=True)
class Blocks:
    """What a call looks like; `keys` are the complete blocks of each request."""

    name: str
    rows: tuple[int, ...] = (9, 0, 1, 14)
    keys: tuple[int, ...] = (150, 20, 77, 3)  # the last request has more rows than tokens
    heads: int = 4
    dim: int = 64
    block: int = 4
    page_size: int | None = None  # None: a batch of keys
    topk: int = 16
    mapped: bool = False  # rows in any order, by token_to_req
    weights: bool = False
    gaps: bool = False
    equal: bool = False  # all keys are the same, so that every score ties
    bad_pages: bool = False  # some pages do not exist
    nan_key: bool = False  # a visible key that is NaN: it must reach the rows that see it, and no other


INDEX_SHAPES = [
    Blocks("model", rows=(13, 1), keys=(700, 600), dim=128, page_size=200, topk=512),
    Blocks("model, batch", rows=(30,), keys=(700,), dim=128, topk=512),
    Blocks("odd sizes", dim=72, block=7, gaps=True),
    *(Blocks(f"{n} index heads", heads=n, weights=n == 5) for n in (1, 3, 5, 64)),
    *(Blocks(f"pages of {n}", page_size=n) for n in (1, 3, 8, 24, 64, 196)),
    Blocks("rows in any order", mapped=True, page_size=24),
    Blocks("head weights", weights=True, gaps=True),
    Blocks("many blocks", rows=(2,), keys=(9000,), dim=8, topk=100),
    Blocks("ties", equal=True),
    Blocks("more than there are", topk=200),
    Blocks("no key", keys=(0, 0, 0, 0), page_size=8),
    Blocks("bad pages", page_size=8, bad_pages=True),
    Blocks("nan in a key", nan_key=True),
]


def _inputs(s: Blocks, dtype: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    rng = np.random.default_rng(len(s.name) + s.block)
    q = normal(rng, (sum(s.rows), s.heads, s.dim), dtype)
    k = normal(rng, (len(s.keys), max(s.keys), s.dim), dtype)
    if s.equal:
        k[:] = k[:1, :1]
    if s.nan_key:
        k[0, 100] = np.nan
    lens = np.array([n * s.block + b % s.block for b, n in enumerate(s.keys)], np.int32)
    first = np.cumsum((0, *s.rows)).astype(np.int32)
    request = np.repeat(np.arange(len(s.rows), dtype=np.int32), s.rows)
    position = (lens - first[1:])[request] + np.arange(request.size, dtype=np.int32)
    options: dict[str, Any] = {"block_size": s.block, "seq_lens_k": lens}
    if s.mapped:
        order = rng.permutation(request.size)
        q, position, options["token_to_req"] = q[order], position[order], request[order]
    else:
        options["cu_seqlens_q"] = first
    options["query_positions"] = position
    if s.page_size is not None:
        pages = Pages(rng, s.keys, s.page_size)
        k = pages.hold([rows[:n, None] for rows, n in zip(k, s.keys, strict=True)])[:, 0]
        table = options["block_table"] = pages.tables["page_table"]
        if s.bad_pages:
            table[rng.random(table.shape) < 0.3] = rng.choice([-1, 1 << 20, np.iinfo(np.int32).min])
    if s.weights:
        options["weights"] = normal(rng, q.shape[:2], "f32")
    if s.gaps:
        q, k = with_gaps(q), with_gaps(k)
    return q, k, options


@dataclass
class Truth:
    """f64 [rows, N], and for a selection its lists [rows, K]."""

    value: np.ndarray
    magnitude: np.ndarray
    lists: np.ndarray | None = None


def _truth(exact: Callable[..., Any], q: np.ndarray, k: np.ndarray, options: dict[str, Any]) -> Truth:
    """`exact` of absolute values is what the error of a score is relative to."""
    absolute = dict(options)
    if "weights" in options:
        absolute["weights"] = np.abs(options["weights"])
    q, k = q.astype(np.float32), k.astype(np.float32)
    value, magnitude = exact(q, k, **options), exact(np.abs(q), np.abs(k), **absolute)
    return Truth(value.astype(np.float64), magnitude.astype(np.float64))


_index_truth = functools.partial(_truth, functools.partial(tessera.qsa_indexer_mqa_score, backend="reference"))


def _judge_scores(got: Any, truth: Truth) -> float:
    return share(got, truth.value, SCORE_BOUND * truth.magnitude)


def qsa_indexer_mqa_score(dtype: str) -> Iterator[Case]:
    for s in INDEX_SHAPES:
        q, k, options = _inputs(s, dtype)
        call = functools.partial(tessera.qsa_indexer_mqa_score, q, k, **options)
        yield Case(s.name, call, functools.partial(_index_truth, q, k, options), _judge_scores)


def qsa_select(dtype: str) -> Iterator[Case]:
    for s in INDEX_SHAPES:
        q, k, options = _inputs(s, dtype)
        call = functools.partial(tessera.qsa_select, q, k, budget=s.topk * s.block, **options)

        def truth(q: np.ndarray = q, k: np.ndarray = k, options: dict[str, Any] = options, call: Any = call) -> Truth:
            scores = _index_truth(q, k, options)
            scores.lists = call(backend="reference")
            return scores

        yield Case(s.name, call, truth, _judge_lists)
        yield Case(s.name + ", screened", functools.partial(_screened, call, k), truth, _judge_lists)


def _screened(call: Any, keys: np.ndarray) -> Any:
    return call(screen=tessera.qsa_screen_keys(keys))


def _judge_lists(got: Any, truth: Truth) -> float:
    worst = 0.0
    for row in range(truth.value.shape[0]):
        tier = np.where(np.isneginf(truth.value[row]), INVISIBLE, BY_SCORE)
        scores = Scores(tier, truth.value[row], truth.magnitude[row])
        worst = max(worst, scores.share(got[row], truth.lists[row]))
    return worst


# ---- Intervals and counts ----------------------------------------------------------------------------------------------

PREFILL_SHAPES = [(40, 60, 4, 128), (97, 129, 3, 72), (1, 300, 64, 8), (130, 7, 1, 24)]  # rows, keys, heads, dim


def qsa_mqa_prefill(dtype: str) -> Iterator[Case]:
    for rows, keys, heads, dim in PREFILL_SHAPES:
        rng = np.random.default_rng(keys)
        q, k = with_gaps(normal(rng, (rows, heads, dim), dtype)), normal(rng, (keys, dim), dtype)
        ends = rng.integers(-3, keys + 9, (2, rows)).astype(np.int32)

        def exact(q: np.ndarray, k: np.ndarray, ends: np.ndarray = ends, **options: Any) -> Any:
            return tessera.qsa_mqa_prefill(q, k, *ends, **options)

        options = {"weights": normal(rng, (rows, heads), "f32")}
        truth = functools.partial(_truth, functools.partial(exact, backend="reference"), q, k, options)
        yield Case(f"{rows} rows, {keys} keys", functools.partial(exact, q, k, **options), truth, _judge_scores)


DECODE_SHAPES = [(1, 8, 128, 4), (1, 3, 64, 5), (4, 24, 72, 3), (2, 196, 128, 4)]  # rows, page size, dim, heads


def qsa_mqa_decode(dtype: str) -> Iterator[Case]:
    for rows, size, dim, heads in DECODE_SHAPES:
        rng = np.random.default_rng(size)
        keys = (300, 0, 131)
        pages = Pages(rng, keys, size)
        q = normal(rng, (len(keys), rows, heads, dim), dtype)
        k = pages.hold([normal(rng, (n, 1, dim), dtype) for n in keys])[:, 0]
        counts = np.maximum(0, np.array(keys)[:, None] - np.arange(rows)).astype(np.int32)
        tables = (pages.tables["page_table"], counts, 310)

        def exact(q: np.ndarray, k: np.ndarray, tables: tuple[Any, ...] = tables, **options: Any) -> Any:
            return tessera.qsa_mqa_decode(q, k, *tables, **options)

        truth = functools.partial(_truth, functools.partial(exact, backend="reference"), q, k, {})
        yield Case(f"{rows} rows, pages of {size}", functools.partial(exact, q, k), truth, _judge_scores)


# ---- Given scores ------------------------------------------------------------------------------------------------------


def topk_blocks(dtype: str) -> Iterator[Case]:
    """Scores of `dtype`'s precision, so that those of bf16 tie often."""
    rng = np.random.default_rng(1)
    scores = normal(rng, (9, 3000), dtype).astype(np.float32)
    scores[1] = 0.5
    scores[2, ::2] = -0.0
    scores[2, 1::2] = 0.0
    scores[3, rng.random(3000) < 0.6] = np.nan
    scores[4, rng.random(3000) < 0.6] = -np.inf
    scores[5] = np.sort(scores[5])
    scores[6] = -np.sort(-scores[6])
    scores[7] = -np.inf
    scores[8] = 1 + np.arange(3000) * 7919 % 3000 * 2.0**-23
    for k in (1, 4, 512, 2048, 4000):
        call = functools.partial(tessera.topk_blocks, scores, k)
        truth = functools.partial(call, backend="reference")
        yield Case(f"top {k}", call, truth, lambda got, want: 0.0 if np.array_equal(got, want) else np.inf)
