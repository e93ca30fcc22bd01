"""Compressed keys, of whole prompts and of tokens as they come, and token lists."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.check.bounds import half_ulp, share
from tessera.check.case import Case
from tessera.check.data import BAD_IDS, normal, with_gaps

# A mean that falls between two numbers of the type may go to either.
UNIT = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-18}


@dataclass(frozen=True)
class Prompts:
    """What a call looks like."""

    name: str
    requests: int = 2
    tokens: int = 75
    dim: int = 72
    block: int = 4
    rotary: int = 24
    round_intermediates: bool = False
    positions: bool = False  # any, not those of a text
    cosines: bool = False
    gaps: bool = False
    page_size: int | None = None  # of the cache, where one is written; None: dense
    drafts: int = 0  # that may be taken back


PROMPTS = [
    Prompts("model", tokens=530, dim=128, rotary=64),
    Prompts("model, rounded as modelling code does", tokens=530, dim=128, rotary=64, round_intermediates=True),
    Prompts("odd sizes", dim=33, rotary=14, block=5, gaps=True),
    Prompts("no rotation", rotary=0),
    Prompts("positions", positions=True, gaps=True),
    Prompts("cosines", cosines=True),
    *(Prompts(f"blocks of {n}", block=n) for n in (1, 2, 16, 64)),
]
STREAMS = [
    Prompts("model", tokens=530, dim=128, rotary=64, page_size=196, drafts=3),
    Prompts("dense", gaps=True),
    Prompts("rounded", round_intermediates=True, page_size=8, drafts=1),
    Prompts("positions", positions=True, page_size=3, drafts=5, gaps=True),
    *(Prompts(f"pages of {n}", page_size=n, drafts=9) for n in (1, 8, 24, 64)),
    *(Prompts(f"blocks of {n}", block=n, page_size=2) for n in (1, 3, 16)),
    Prompts("many requests", requests=40, tokens=13, dim=16, rotary=8, page_size=2, drafts=2),
]


@dataclass
class Inputs:
    raw: np.ndarray
    weight: np.ndarray
    rule: dict[str, Any]
    positions: np.ndarray | None
    cosines: dict[str, np.ndarray]

    def compress(self, **options: Any) -> np.ndarray:
        where = {} if self.positions is None else {"positions": self.positions}
        return tessera.qsa_compress_keys(self.raw, self.weight, **where, **self.cosines, **self.rule, **options)


def _inputs(s: Prompts, dtype: str) -> Inputs:
    rng = np.random.default_rng(s.dim + s.block)
    raw = normal(rng, (s.requests, s.tokens, s.dim), dtype)
    if s.gaps:
        raw = with_gaps(raw)
    weight = normal(rng, (s.dim,), dtype) * raw.dtype.type(0.25)
    rule = {"block_size": s.block, "rotary_dim": s.rotary, "round_intermediates": s.round_intermediates}
    blocks = s.tokens // s.block
    positions = rng.integers(0, 1 << 20, (s.requests, s.tokens), dtype=np.int32) if s.positions else None
    angles = rng.uniform(-4, 4, (s.requests, blocks, s.rotary // 2)).astype(np.float32)
    cosines = {"cos": np.cos(angles), "sin": np.sin(angles)} if s.cosines else {}
    return Inputs(raw, weight, rule, positions, cosines)


def truth(s: Prompts, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Keys by the reference, and what the error of each feature is relative to."""
    keys = inputs.compress(backend="reference").astype(np.float64)
    raw = inputs.raw[:, : s.tokens // s.block * s.block].astype(np.float64)
    raw = raw.reshape(s.requests, -1, s.block, s.dim)
    root = np.sqrt(np.mean(raw.mean(axis=2) ** 2, axis=-1, keepdims=True) + 1e-6)
    reach = np.abs(raw).mean(axis=2) * np.abs(1 + inputs.weight.astype(np.float64)) / root
    half = s.rotary // 2
    both = reach[..., :half] + reach[..., half : s.rotary]
    return keys, np.concatenate([both, both, reach[..., s.rotary :]], axis=-1)


def judge_keys(s: Prompts, dtype: str, got: Any, known: tuple[np.ndarray, np.ndarray]) -> float:
    want, reach = known
    largest = np.maximum(np.abs(np.asarray(got).astype(np.float64)), np.abs(want))
    unit = UNIT[dtype] * (4 if s.round_intermediates else 1)
    return share(got, want, unit * reach + 2 * half_ulp(largest, dtype))


def qsa_compress_keys(dtype: str) -> Iterator[Case]:
    for s in PROMPTS:
        inputs = _inputs(s, dtype)
        yield Case(
            s.name, inputs.compress, functools.partial(truth, s, inputs), functools.partial(judge_keys, s, dtype)
        )


def _append(s: Prompts, inputs: Inputs) -> np.ndarray:
    """Compressed keys out of the cache that random calls leave; NaN if they wrote anywhere else."""
    rng = np.random.default_rng(s.block)
    blocks = s.tokens // s.block
    page_size = s.page_size or blocks
    pages = -(-blocks // page_size)
    table = rng.permutation(s.requests * pages + 3)[: s.requests * pages].reshape(s.requests, pages).astype(np.int32)
    if s.page_size is None:
        table = np.arange(s.requests, dtype=np.int32)[:, None]
    cache = np.full((s.requests * pages + 3 * (s.page_size is not None), page_size, s.dim), np.nan, inputs.raw.dtype)
    ring = np.full((s.requests, s.block - 1 + s.drafts, s.dim), np.nan, inputs.raw.dtype)
    lens = np.zeros(s.requests, np.int64)
    while (lens < s.tokens).any():
        good = np.minimum(rng.integers(0, rng.choice([2, 9, 200]), s.requests), s.tokens - lens)
        rows = good + rng.integers(0, s.drafts + 1, s.requests)
        raw = np.full((rows.sum(), s.dim), np.nan, inputs.raw.dtype)  # what is not good is a draft, taken back later
        first = np.concatenate([[0], np.cumsum(rows)])
        for b, (at, n) in enumerate(zip(first, good, strict=False)):
            raw[at : at + n] = inputs.raw[b, lens[b] : lens[b] + n]
        where = {}
        if inputs.positions is not None:
            tokens = (lens[:, None] // s.block + np.arange(-(-rows.max() // s.block) + 1)) * s.block
            where["block_positions"] = np.take_along_axis(inputs.positions, np.minimum(tokens, s.tokens - 1), axis=1)
        if s.page_size is not None:
            where["page_table"] = table
        tessera.qsa_append_keys(
            raw, lens.astype(np.int32), inputs.weight, ring, cache, cu_seqlens_q=first.astype(np.int32), **where, **inputs.rule
        )  # fmt: skip
        lens += good
    keys = cache[table].reshape(s.requests, -1, s.dim)[:, :blocks].copy()
    cache[table] = np.nan
    return keys if np.isnan(cache).all() else np.full_like(keys, np.nan)


def qsa_append_keys(dtype: str) -> Iterator[Case]:
    for s in STREAMS:
        inputs = _inputs(s, dtype)
        run = functools.partial(_append, s, inputs)
        yield Case(s.name, run, functools.partial(truth, s, inputs), functools.partial(judge_keys, s, dtype))


def qsa_screen_keys(dtype: str) -> Iterator[Case]:
    for shape in ((300, 128), (3, 5, 7, 19)):
        keys = normal(np.random.default_rng(len(shape)), shape, dtype)
        call = functools.partial(tessera.qsa_screen_keys, keys)
        judge = functools.partial(_screen_error, keys)
        yield Case(f"{len(shape)} axes", call, functools.partial(call, backend="reference"), judge)


def _screen_error(keys: Any, got: Any, want: Any) -> float:
    """What the copies differ from the keys by, as a share of what the screen allows for; their scales are the oracle's."""
    codes, scales = got[0].astype(np.float64), got[1].astype(np.float64)[..., None]
    share = np.abs(keys.astype(np.float64) - codes * scales) / (scales * (0.5 + 2.0**-15))
    return float(share.max()) if np.array_equal(got[1], want[1]) else np.inf


# Leading axes, K, bs.
LISTS = {"model": ((40,), 512, 4), "axes": ((2, 3, 2), 9, 4), "odd": ((5, 7), 6, 3), "blocks of 1": ((30,), 20, 1)}


def qsa_expand_blocks(_: str) -> Iterator[Case]:
    """The dtype of the keys plays no part."""
    for name, (axes, count, block) in LISTS.items():
        rng = np.random.default_rng(count)
        ids = rng.integers(-1, 2 * count, (*axes, count), dtype=np.int32)
        ids[..., ::5] = rng.choice(BAD_IDS, ids[..., ::5].shape)
        positions = rng.integers(-2, 2 * count * block, axes, dtype=np.int32)
        call = functools.partial(tessera.qsa_expand_blocks, ids, positions, block_size=block)
        judge = lambda got, want: 0.0 if np.array_equal(got, want) else np.inf  # noqa: E731
        yield Case(name, call, functools.partial(call, backend="reference"), judge)
