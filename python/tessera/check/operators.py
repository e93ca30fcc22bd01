"""Small hostile calls of every operator, each with a judge that knows the truth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.attention import attention, attention_state
from tessera.check.bounds import LOG_BOUND, out_share, share
from tessera.check.case import Case
from tessera.check.data import Pages, normal, with_gaps
from tessera.check.kv_cache import append_kv
from tessera.check.msa_attention import msa_attention, msa_decode, single_q
from tessera.check.msa_index import msa_block_scores, msa_select
from tessera.check.qsa_attention import qsa_sparse_attention
from tessera.check.qsa_index import (
    qsa_indexer_mqa_score,
    qsa_mqa_decode,
    qsa_mqa_prefill,
    qsa_select,
    topk_blocks,
)
from tessera.check.qsa_keys import qsa_append_keys, qsa_compress_keys, qsa_expand_blocks, qsa_screen_keys
from tessera.check.selection import selection_share

# ---- Merging -----------------------------------------------------------------------------------------------------------

MERGE_SHAPES = {"rows": (5, 33), "one row": (1,), "long": (2, 300, 4)}
MERGE_DIMS = {"rows": 72, "one row": 1, "long": 128}
SHARDS = 5


def _shards(name: str, dtype: str) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """o, l, m of shards far apart in weight, one in four empty and full of NaN; row 0 is empty in all of them."""
    rng = np.random.default_rng(MERGE_DIMS[name])
    shape = MERGE_SHAPES[name]
    o, l, m = [], [], []
    for _ in range(SHARDS):
        empty = rng.random(shape) < 0.25
        empty.reshape(-1)[0] = True
        o.append(normal(rng, (*shape, MERGE_DIMS[name]), dtype))
        o[-1][empty] = np.nan
        l.append(np.where(empty, 0, 1 + 100 * rng.random(shape)).astype(np.float32))
        m.append(np.where(empty, -np.inf, 20 * rng.standard_normal(shape)).astype(np.float32))
    return o, l, m


def _cp_merge(dtype: str) -> Iterator[Case]:
    def reference(states: list[tuple[np.ndarray, ...]]) -> np.ndarray:
        return tessera.cp_merge(states, np.float32, backend="reference").astype(np.float64)

    for name in MERGE_SHAPES:
        states = list(zip(*_shards(name, "f32"), strict=True))
        absolute = [(np.abs(o), *rest) for o, *rest in states]
        yield Case(
            name,
            functools.partial(tessera.cp_merge, states, _scalar_type(dtype)),
            lambda states=states, absolute=absolute: (reference(states), reference(absolute)),
            lambda out, truth: out_share(out, *truth, dtype),
        )


def _merge_states(dtype: str) -> Iterator[Case]:
    def reference(partials: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        absolute = [(np.abs(out), lse) for out, lse in partials]
        merged = tessera.merge_states(partials, backend="reference")
        return [x.astype(np.float64) for x in (*merged, tessera.merge_states(absolute, backend="reference")[0])]

    def judge(result: Any, truth: list[np.ndarray]) -> float:
        want, want_lse, spread = truth
        return max(out_share(result[0], want, spread, dtype), share(result[1], want_lse, LOG_BOUND[dtype]))

    for name in MERGE_SHAPES:
        o, _, lse = _shards(name, dtype)
        exact = [(x.astype(np.float32), y) for x, y in zip(o, lse, strict=True)]
        call = functools.partial(tessera.merge_states, list(zip(o, lse, strict=True)))
        yield Case(name, call, functools.partial(reference, exact), judge)


def _scalar_type(dtype: str) -> Any:
    return normal(np.random.default_rng(0), (), dtype).dtype.type


# ---- Selection ---------------------------------------------------------------------------------------------------------


@dataclass
class Lists:
    """What a selection looks like. `equal`: all keys are the same, so that every score ties."""

    name: str
    topk: int
    queries: int = 150
    keys: int = 150
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    block: int = 16
    block_q: int = 32
    requests: int = 1
    local_blocks: int = 1
    init_blocks: int = 1
    offset: tuple[int, ...] | None = None
    equal: bool = False
    gaps: bool = False
    stride: int = 8
    page_size: int | None = None


SELECTION_SHAPES = [
    Lists("model", topk=4, queries=260, keys=700, group=16, dim=128, block=64, block_q=64),
    Lists("odd sizes", topk=3, queries=77, keys=131, dim=72, block=9, block_q=10, stride=3, gaps=True),
    Lists("list per token", topk=2, queries=40, keys=90, block_q=1, init_blocks=0),
    Lists("ties", topk=5, equal=True, local_blocks=2),
    Lists("offsets", topk=3, queries=50, requests=3, offset=(100, -20, 400)),
    Lists("more than there are", topk=12),
    Lists("nothing forced", topk=4, local_blocks=0, init_blocks=0),
    *(Lists(f"pages of {n}", topk=3, requests=2, page_size=n) for n in (1, 24, 128)),
]


def _selection(operator: str, dtype: str) -> Iterator[Case]:
    function = getattr(tessera, operator)
    for s in SELECTION_SHAPES:
        rng = np.random.default_rng(s.topk)
        q = normal(rng, (s.requests, s.queries, s.kv_heads * s.group, s.dim), dtype)
        k = normal(rng, (s.requests, s.keys, s.kv_heads, s.dim), dtype)
        if s.equal:
            k[:, 1:] = k[:, :1]
        if s.gaps:
            q, k = with_gaps(q), with_gaps(k)
        offset = np.full(s.requests, s.keys - s.queries) if s.offset is None else np.array(s.offset)
        options = {name: getattr(s, name) for name in ("topk", "block_q", "local_blocks", "init_blocks")}
        options["block_size"] = s.block
        if operator == "mass_select":
            options |= {"stride": s.stride, "softmax_scale": None}
        given = None if s.offset is None else offset.astype(np.int32)
        keys, tables = k, {}
        if s.page_size is not None:
            pages = Pages(rng, [s.keys] * s.requests, s.page_size)
            keys, tables = pages.hold(k), pages.tables
        call = functools.partial(function, q, keys, q_offset=given, **options, **tables)
        judge = functools.partial(_judge_selection, operator, q, k, offset, options)
        yield Case(s.name, call, functools.partial(call, backend="reference"), judge)


def _judge_selection(
    operator: str, q: np.ndarray, k: np.ndarray, offset: np.ndarray, options: dict[str, Any], got: Any, want: Any
) -> float:
    return selection_share(operator, got, want, q, k, offset, **options)


OPERATORS: dict[str, Callable[[str], Iterator[Case]]] = {
    "block_sparse_gqa_prefill": attention,
    "block_sparse_gqa_prefill_state": attention_state,
    "block_sparse_attention_single_q": single_q,
    "msa_sparse_attention": msa_attention,
    "msa_sparse_decode_attention": msa_decode,
    "append_kv": append_kv,
    "msa_block_scores": msa_block_scores,
    "msa_select": msa_select,
    "qsa_indexer_mqa_score": qsa_indexer_mqa_score,
    "qsa_mqa_prefill": qsa_mqa_prefill,
    "qsa_mqa_decode": qsa_mqa_decode,
    "qsa_select": qsa_select,
    "topk_blocks": topk_blocks,
    "qsa_compress_keys": qsa_compress_keys,
    "qsa_append_keys": qsa_append_keys,
    "qsa_expand_blocks": qsa_expand_blocks,
    "qsa_screen_keys": qsa_screen_keys,
    "qsa_sparse_attention": qsa_sparse_attention,
    "cp_merge": _cp_merge,
    "merge_states": _merge_states,
    "mass_select": functools.partial(_selection, "mass_select"),
    "moba_select": functools.partial(_selection, "moba_select"),
}
