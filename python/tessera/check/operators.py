"""Small hostile calls of every operator, each with a judge that knows the truth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import LOG_BOUND, AttentionTruth, out_share, share
from tessera.check.data import normal, with_gaps
from tessera.check.selection import selection_share

INT_MIN, INT_MAX = np.iinfo(np.int32).min, np.iinfo(np.int32).max


@dataclass
class Case:
    name: str
    run: Callable[[], Any]
    truth: Callable[[], Any]
    judge: Callable[[Any, Any], float]  # the worst error of a result, beside the truth, as a share of its bound

    @functools.cached_property
    def known(self) -> Any:
        return self.truth()

    def share(self) -> float:
        return self.judge(self.run(), self.known)


# ---- Block-sparse attention --------------------------------------------------------------------------------------------


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
]


def _ids(rng: np.random.Generator, s: Shape, blocks: int) -> np.ndarray:
    """Valid ids and repetitions in any order among what must be skipped."""
    lists = -(-s.queries // s.block_q)
    shape = (s.requests, s.kv_heads, lists, s.width) if s.per_head else (s.requests, lists, s.width)
    ids = rng.integers(0, max(blocks, 1), shape, dtype=np.int32)
    bad = rng.choice(np.array([-1, INT_MIN, INT_MAX, blocks], np.int32), shape)
    keep = np.zeros(shape, bool) if s.invalid_only or blocks == 0 else rng.random(shape) < 0.8
    return np.where(keep, ids, bad)


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
    if s.gaps:
        q, k, v = with_gaps(q), with_gaps(k), with_gaps(v)
    options = {"block_size": s.block, "block_q": s.block_q, "causal": s.causal, "softmax_scale": s.scale}
    if s.offset is not None:
        options["q_offset"] = np.array(s.offset, np.int32)
    return (q, k, v, ids), options


@functools.cache
def _attention_truth(s: Shape, dtype: str) -> AttentionTruth:
    inputs, options = _attention_inputs(s, dtype)
    return AttentionTruth(*inputs, **options)


def _attention(dtype: str) -> Iterator[Case]:
    def judge(result: Any, truth: AttentionTruth) -> float:
        out, lse = result
        return max(truth.out_share(out, dtype), truth.lse_share(lse, dtype))

    for s in ATTENTION_SHAPES:
        inputs, options = _attention_inputs(s, dtype)
        call = functools.partial(tessera.block_sparse_gqa_prefill, *inputs, return_lse=True, **options)
        yield Case(s.name, call, functools.partial(_attention_truth, s, dtype), judge)


def _attention_state(dtype: str) -> Iterator[Case]:
    for s in ATTENTION_SHAPES:
        inputs, options = _attention_inputs(s, dtype)
        call = functools.partial(tessera.block_sparse_gqa_prefill_state, *inputs, **options)
        truth = functools.partial(_attention_truth, s, dtype)
        yield Case(s.name, call, truth, lambda state, truth: truth.state_share(*state, dtype))


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


SELECTION_SHAPES = [
    Lists("model", topk=4, queries=260, keys=700, group=16, dim=128, block=64, block_q=64),
    Lists("odd sizes", topk=3, queries=77, keys=131, dim=72, block=9, block_q=10, stride=3, gaps=True),
    Lists("list per token", topk=2, queries=40, keys=90, block_q=1, init_blocks=0),
    Lists("ties", topk=5, equal=True, local_blocks=2),
    Lists("offsets", topk=3, queries=50, requests=3, offset=(100, -20, 400)),
    Lists("more than there are", topk=12),
    Lists("nothing forced", topk=4, local_blocks=0, init_blocks=0),
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
        call = functools.partial(function, q, k, q_offset=given, **options)
        judge = functools.partial(_judge_selection, operator, q, k, offset, options)
        yield Case(s.name, call, functools.partial(call, backend="reference"), judge)


def _judge_selection(
    operator: str, q: np.ndarray, k: np.ndarray, offset: np.ndarray, options: dict[str, Any], got: Any, want: Any
) -> float:
    return selection_share(operator, got, want, q, k, offset, **options)


OPERATORS: dict[str, Callable[[str], Iterator[Case]]] = {
    "block_sparse_gqa_prefill": _attention,
    "block_sparse_gqa_prefill_state": _attention_state,
    "cp_merge": _cp_merge,
    "merge_states": _merge_states,
    "mass_select": functools.partial(_selection, "mass_select"),
    "moba_select": functools.partial(_selection, "moba_select"),
}
