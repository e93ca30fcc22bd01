"""Calls of QSA's attention over token lists."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import EPSILON, LOG_BOUND, half_ulp, out_share, share
from tessera.check.case import Case
from tessera.check.data import BAD_IDS, GROUPS, Pages, normal, packed_keys, packed_values, with_gaps


@dataclass(frozen=True)
class Tokens:
    """What a call looks like. Rows are packed; those of a request are its last tokens."""

    name: str
    rows: tuple[int, ...] = (5, 0, 1, 9)
    keys: tuple[int, ...] = (150, 20, 77, 6)  # the last request has more rows than keys
    kv_heads: int = 2
    group: int = 4
    dim: int = 64
    dim_v: int = 64
    width: int = 60
    page_size: int | None = None
    packed_layout: int | None = None  # tokens of a packed page, of which some make page_size
    batch: bool = False  # of keys; else, and not in pages, they are packed
    slots: bool = False  # ids are rows of packed keys
    blocks: bool = False  # lists of four-token blocks and the tail
    splits: int | None = None
    gate: str = ""  # "features" or "heads"; "f32": features, whatever the dtype
    mapped: bool = False  # rows in any order, by token_to_req
    gaps: bool = False
    invalid_only: bool = False
    bad_pages: bool = False  # some pages do not exist
    scale: float | None = None
    nan_key: bool = False  # a value on some lists that is NaN: it must reach their rows, and no other


TOKEN_SHAPES = [
    Tokens("model", rows=(3, 1), keys=(2600, 300), group=12, dim=256, dim_v=256, width=2051, page_size=64,
           blocks=True, gate="features"),
    Tokens("packed keys"),
    Tokens("packed keys, strided", gaps=True, gate="heads"),
    Tokens("batch of keys", batch=True, gate="features"),
    Tokens("slots", slots=True),
    Tokens("slots, strided", slots=True, gaps=True),
    Tokens("odd dims", dim=71, dim_v=9, group=3),
    Tokens("wide values", dim=8, dim_v=512, group=3, width=9),
    *(Tokens(f"group {n}", kv_heads=1, group=n, page_size=16) for n in (*GROUPS, 12, 64)),
    *(Tokens(f"pages of {n}", page_size=n, blocks=n != 3, gaps=n == 24) for n in (1, 3, 16, 24, 64, 784)),
    *(Tokens(f"{n} splits", rows=(2,), keys=(1500,), width=1100, splits=n, page_size=24) for n in (1, 2, 7, 64)),
    *(Tokens(f"lists of {n}", rows=(3,), keys=(600,), width=n, batch=True) for n in (0, 1, 127, 128, 129, 512, 513)),
    *(Tokens(f"gate of {n}, many rows", rows=(90,), keys=(120,), dim=24, dim_v=40, gate=n) for n in ("heads", "f32")),
    Tokens("gate, split", rows=(1, 1), keys=(900, 700), width=800, gate="features", splits=5),
    Tokens("rows in any order", mapped=True, page_size=16),
    Tokens("packed layout, model", rows=(3, 1), keys=(2600, 300), group=12, dim=256, dim_v=256, width=2051, page_size=64,
           packed_layout=4, blocks=True, gate="features"),
    *(Tokens(f"packed layout, {n} of {size}", page_size=size, packed_layout=n, blocks=blocks, gaps=n == 16, bad_pages=n == 8)
      for n, size, blocks in ((4, 16, True), (4, 16, False), (4, 4, True), (8, 24, True), (16, 16, True), (3, 3, False))),
    Tokens("packed layout, odd dims", dim=71, dim_v=9, group=3, page_size=16, packed_layout=4, blocks=True),
    Tokens("packed layout, split", rows=(2,), keys=(1500,), width=1103, splits=3, page_size=48, packed_layout=4, blocks=True),
    Tokens("packed layout, slots", slots=True, packed_layout=4),
    Tokens("bad pages", page_size=8, bad_pages=True),
    Tokens("no valid id", invalid_only=True, gate="features"),
    Tokens("no key", keys=(0, 0, 0, 0), page_size=8),
    Tokens("negative scale", scale=-0.2),
    Tokens("nan in a value", nan_key=True, page_size=24),
]  # fmt: skip


def _lists(rng: np.random.Generator, s: Tokens, request: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Ids in any order, some twice and some that must be skipped; or blocks as a selection gives them."""
    shape = (request.size, s.width)
    if not s.blocks:
        keys = np.array(s.keys)[request][:, None]
        ids = rng.integers(0, np.maximum(keys, 1), shape, dtype=np.int32)
        keep = (rng.random(shape) < 0.8) & (keys > 0) & (not s.invalid_only)
        return np.where(keep, ids, rng.choice([*BAD_IDS, 1 << 20], shape).astype(np.int32))
    lists = np.full(shape, -1, np.int32)
    for row, at in zip(lists, position, strict=True):
        complete = max(int(at) + 1, 0) // 4
        chosen = np.flatnonzero(rng.random(complete) < 0.7)[: (s.width - 3) // 4]
        ids = np.concatenate([(4 * chosen[:, None] + np.arange(4)).reshape(-1), np.arange(4 * complete, at + 1)])
        row[: ids.size] = ids
    return lists


def _packed(k: np.ndarray, v: np.ndarray, s: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """[..., tokens, heads, dim] in packed pages of s.packed_layout tokens; heads outside pages where there are gaps."""
    n = s.packed_layout

    def pages(x: np.ndarray) -> np.ndarray:
        rows = x.reshape(-1, *x.shape[-2:])
        rows = np.concatenate([rows, np.full((-len(rows) % n, *rows.shape[1:]), np.nan, x.dtype)])
        return rows.reshape(-1, n, *rows.shape[1:]).swapaxes(1, 2)

    def strided(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(0, 1).copy().swapaxes(0, 1) if s.gaps else x

    return strided(packed_keys(pages(k))), strided(packed_values(pages(v)))


def _inputs(s: Tokens, dtype: str) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """q, k, v and lists; keys that no list of their request names are NaN."""
    rng = np.random.default_rng(len(s.name) + s.group)
    q = normal(rng, (sum(s.rows), s.kv_heads * s.group, s.dim), dtype)
    k, v = (normal(rng, (sum(s.keys), s.kv_heads, dim), dtype) for dim in (s.dim, s.dim_v))
    first, key = (np.cumsum((0, *n)).astype(np.int32) for n in (s.rows, s.keys))
    request = np.repeat(np.arange(len(s.rows), dtype=np.int32), s.rows)
    position = (np.array(s.keys, np.int32) - first[1:])[request] + np.arange(request.size, dtype=np.int32)
    lists = _lists(rng, s, request, position)
    for b, begin in enumerate(key[:-1]):
        unused = begin + np.setdiff1d(np.arange(s.keys[b]), lists[request == b])
        k[unused] = v[unused] = np.nan
    if s.nan_key:
        v[lists[0][(lists[0] >= 0) & (lists[0] <= position[0])][0]] = np.nan
    options: dict[str, Any] = {"scale": s.scale, "num_splits": s.splits}
    if s.slots:
        in_range = (lists >= 0) & (lists <= position[:, None])
        lists = np.where(in_range, lists + key[request][:, None], lists.clip(max=-1)).astype(np.int32)
    elif s.mapped:
        order = rng.permutation(request.size)
        q, lists = q[order], lists[order]
        options |= {"token_to_req": request[order], "query_positions": position[order]}
    else:
        options["cu_seqlens_q"] = first
    parts = [np.split(x, key[1:-1]) for x in (k, v)]
    if s.page_size is not None:
        pages = Pages(rng, s.keys, s.page_size)
        k, v = (pages.hold(x).swapaxes(1, 2).copy() for x in parts)  # [P, size, heads, dim]
        table = options["block_table"] = pages.tables["page_table"]
        if s.bad_pages:
            table[rng.random(table.shape) < 0.3] = rng.choice([-1, 1 << 20, np.iinfo(np.int32).min])
    elif s.batch:
        k, v = (np.stack([np.pad(y, ((0, max(s.keys) - len(y)), (0, 0), (0, 0))) for y in x]) for x in parts)
    elif not s.slots:
        options["cu_seqlens_k"] = key
    if s.page_size is not None or s.batch:
        options["seq_lens_k"] = np.array(s.keys, np.int32)
    if s.gate:
        shape = q.shape[:2] if s.gate == "heads" else (*q.shape[:2], s.dim_v)
        options["gate"] = normal(rng, shape, "f32" if s.gate == "f32" else dtype)
    if s.gaps:
        q, k, v = (with_gaps(x) for x in (q, k, v))
        lists = with_gaps(lists[None])[0]
    return (q, k, v, lists), options


def _case(s: Tokens, dtype: str) -> Case:
    (q, k, v, lists), options = _inputs(s, dtype)
    named = {"selected_kv_indices" if s.slots else "token_indices": lists, "return_lse": True, **options}

    def truth() -> list[np.ndarray]:
        wide, rest = [x.astype(np.float32) for x in (q, k, v)], dict(named)
        gate = rest.pop("gate", None)
        exact = functools.partial(tessera.qsa_sparse_attention, **rest, backend="reference")
        want, lse = (x.astype(np.float64) for x in exact(*wide))
        spread = exact(*wide[:2], np.abs(wide[2]))[0].astype(np.float64)
        if gate is None:
            return [want, lse, spread]
        weight = 1 / (1 + np.exp(-gate.astype(np.float64).reshape(*want.shape[:2], -1)))
        rounded = half_ulp(want, dtype) / EPSILON[dtype]  # before the gate
        return [weight * want, lse, weight * (spread + rounded)]

    def judge(result: Any, truth: list[np.ndarray]) -> float:
        want, want_lse, spread = truth
        return max(out_share(result[0], want, spread, dtype), share(result[1], want_lse, LOG_BOUND[dtype]))

    caches = _packed(k, v, s) if s.packed_layout else (k, v)
    call = functools.partial(tessera.qsa_sparse_attention, q, *caches, page_size=s.page_size, **named)
    return Case(s.name, call, truth, judge)


def qsa_sparse_attention(dtype: str) -> Iterator[Case]:
    for s in TOKEN_SHAPES:
        yield _case(s, dtype)
