"""One call of every operator with random sizes, as the function takes it: for tests of everything made from the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Sizes:
    """Random sizes and tensors from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = DTYPES[seed % 3]
        self.batch, self.heads_kv, self.group = (self.size(1, 3) for _ in range(3))
        self.heads_q = self.heads_kv * self.group
        self.block, self.dim, self.dim_v = self.size(2, 9), self.size(1, 20), self.size(1, 20)
        self.rows, self.keys = self.size(1, 20), self.size(1, 40)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flip(self) -> bool:
        return self.size(0, 1) == 1

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape, np.float32)).to(dtype or self.dtype)

    def ints(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(low, high, shape).astype(np.int32))

    def blocks(self, *rows: int) -> torch.Tensor:
        return self.ints(-1, -(-self.keys // self.block), *rows, self.size(1, 4))

    def offsets(self, total: int) -> torch.Tensor:
        """Bounds of self.batch requests among `total` rows."""
        inner = np.sort(self.rng.integers(0, total + 1, self.batch - 1))
        return torch.tensor([0, *inner.tolist(), total], dtype=torch.int32)

    def pages(self, name: str = "page_table") -> tuple[int, int, dict[str, torch.Tensor]]:
        """(pages, tokens per page, table and lengths)."""
        page, most = self.size(1, 9), self.size(1, 4)
        table = self.ints(-1, self.batch * most, self.batch, most)
        return self.batch * most, page, {name: table}

    def any_offset(self) -> dict[str, Any]:
        return {"q_offset": self.size(-3, 30)} if self.flip() else {}


def _prefill(s: Sizes) -> Call:
    block_q = s.size(1, 8)
    lists = (s.heads_kv,) if s.flip() else ()
    ids = s.blocks(s.batch, *lists, -(-s.rows // block_q))
    options: dict[str, Any] = {"block_size": s.block, "block_q": block_q, **s.any_offset()}
    shape: tuple[int, ...] = (s.batch, s.keys, s.heads_kv)
    if s.flip():
        pages, page, tables = s.pages()
        shape = (pages, s.heads_kv, page)
        options |= tables | {"seqused_k": s.ints(0, 30, s.batch)}
    q = s.normal(s.batch, s.rows, s.heads_q, s.dim)
    return (q, s.normal(*shape, s.dim), s.normal(*shape, s.dim_v), ids), options


def _single_q(s: Sizes) -> Call:
    h = s.heads_q
    q, k, v = s.normal(h, s.rows, s.dim), s.normal(h, s.keys, s.dim), s.normal(h, s.keys, s.dim_v)
    return (q, k, v, s.blocks(h) if s.flip() else s.blocks()), {"block_size": s.block, **s.any_offset()}


def _msa(s: Sizes) -> Call:
    options: dict[str, Any] = {"cu_seqlens_q": s.offsets(s.rows), "block_size": s.block, **s.any_offset()}
    ids = s.blocks(s.heads_kv, s.rows)
    if s.flip():
        shape: tuple[int, ...] = (s.keys, s.heads_kv)
        options["cu_seqlens_k"] = s.offsets(s.keys)
    else:
        pages, page, tables = s.pages()
        shape = (pages, s.heads_kv, page)
        options |= tables | {"seqused_k": s.ints(0, 30, s.batch)}
    q = s.normal(s.rows, s.heads_q, s.dim)
    return (q, s.normal(*shape, s.dim), s.normal(*shape, s.dim_v), ids), options


def _msa_decode(s: Sizes) -> Call:
    rows, (pages, page, tables) = s.size(1, 3), s.pages()
    options = {**tables, "seqused_k": s.ints(0, 30, s.batch), "seqlen_q": rows, "block_size": s.block}
    q = s.normal(s.batch * rows, s.heads_q, s.dim)
    k, v = (s.normal(pages, s.heads_kv, page, d) for d in (s.dim, s.dim_v))
    if s.flip():  # the packed layout of the same cache
        e = 2 if s.dtype != torch.float32 else 1
        k = s.normal(pages, s.heads_kv, -(-s.dim // e), page, e)
        v = s.normal(pages, s.heads_kv, -(-page // e), s.dim_v, e)
    return (q, k, v, s.blocks(s.heads_kv, s.batch * rows)), options | s.any_offset()


def _msa_index(s: Sizes) -> Call:
    keys = s.heads_q if s.flip() else 1
    options: dict[str, Any] = {"block_size": s.block, "reduce_heads": s.flip(), **s.any_offset()}
    form = s.size(0, 2)
    if form == 0:
        q, k = s.normal(s.batch, s.rows, s.heads_q, s.dim), s.normal(s.batch, s.keys, keys, s.dim)
        return (q, k), options
    q = s.normal(s.rows, s.heads_q, s.dim)
    options["cu_seqlens_q"] = s.offsets(s.rows)
    if form == 1:
        return (q, s.normal(s.keys, keys, s.dim)), options | {"cu_seqlens_k": s.offsets(s.keys)}
    pages, page, tables = s.pages()
    return (q, s.normal(pages, keys, page, s.dim)), options | tables | {"seqused_k": s.ints(0, 30, s.batch)}


def _msa_select(s: Sizes) -> Call:
    inputs, options = _msa_index(s)
    return inputs, options | {"topk": s.size(1, 6)}


def _free_select(s: Sizes) -> Call:
    inputs, options = _prefill(s)
    options["topk"] = s.size(2, 6)
    return inputs[:2], options


def _states(s: Sizes) -> Call:
    rows = (s.rows, s.heads_q)[: s.size(0, 2)]
    f32 = torch.float32
    parts = [
        (s.normal(*rows, s.dim_v, dtype=f32), s.normal(*rows, dtype=f32).abs(), s.normal(*rows, dtype=f32))
        for _ in range(s.size(1, 3))
    ]
    return (parts, s.dtype), {}


def _partials(s: Sizes) -> Call:
    (parts, _), _ = _states(s)
    return ([(o.to(s.dtype), m) for o, _, m in parts],), {}


def _qsa_index(s: Sizes) -> Call:
    rows = (s.batch, s.rows) if s.flip() else (s.rows,)
    options: dict[str, Any] = {"block_size": s.size(1, 5)}
    if len(rows) == 1:
        options["cu_seqlens_q"] = s.offsets(s.rows)
    if s.flip():
        options["weights"] = s.normal(*rows, s.heads_q, dtype=torch.float32)
    if s.flip():
        options["query_positions"] = s.ints(0, 100, *rows)
    if s.flip():
        pages, page, tables = s.pages("block_table")
        keys = s.normal(pages, page, s.dim)
        options |= tables | {"page_size": page}
    else:
        keys = s.normal(s.batch, s.keys, s.dim)
    return (s.normal(*rows, s.heads_q, s.dim), keys), options


def _qsa_select(s: Sizes) -> Call:
    inputs, options = _qsa_index(s)
    if s.flip():
        import tessera

        options["screen"] = tessera.qsa_screen_keys(inputs[1])
    return inputs, options | {"budget": s.size(5, 30)}


def _qsa_mqa_prefill(s: Sizes) -> Call:
    q, k = s.normal(s.rows, s.heads_q, s.dim), s.normal(s.keys, s.dim)
    return (q, k, s.ints(0, 5, s.rows), s.ints(0, s.keys + 1, s.rows)), {"scale": 0.5} if s.flip() else {}


def _qsa_mqa_decode(s: Sizes) -> Call:
    pages, page, tables = s.pages()
    rows = (s.batch, s.size(1, 3)) if s.flip() else (s.batch,)
    lengths = s.ints(0, 30, *rows) if s.flip() else s.ints(0, 30, s.batch)
    inputs = s.normal(*rows, s.heads_q, s.dim), s.normal(pages, page, s.dim), tables["page_table"], lengths
    return (*inputs, s.size(1, 40)), {}


def _qsa_attention(s: Sizes) -> Call:
    options: dict[str, Any] = {}
    rows = (s.batch, s.rows) if s.flip() else (s.rows,)
    keys: tuple[int, ...] = (s.batch, s.keys, s.heads_kv)
    if len(rows) == 1:
        options["cu_seqlens_q"] = s.offsets(s.rows)
    if s.flip():
        pages, page, tables = s.pages("block_table")
        keys = (pages, page, s.heads_kv)
        options |= tables
    if s.flip():
        options["gate"] = s.normal(*rows, s.heads_q, s.dim_v)
    if s.flip():
        options["query_positions"] = s.ints(0, 100, *rows)
    ids = s.ints(-1, s.keys, *rows, s.size(1, 9))
    return (s.normal(*rows, s.heads_q, s.dim), s.normal(*keys, s.dim), s.normal(*keys, s.dim_v), ids), options


def _compress(s: Sizes) -> Call:
    dim = 2 * s.dim
    inputs = s.normal(s.batch, s.keys, dim), s.normal(dim)
    return inputs, {"block_size": s.size(1, 5), "rotary_dim": 2 * s.size(0, s.dim)}


def _append_keys(s: Sizes) -> Call:
    dim, block = 2 * s.dim, s.size(1, 5)
    ring, cache = torch.zeros(s.batch, block + 2, dim, dtype=s.dtype), torch.zeros(s.batch, 20, dim, dtype=s.dtype)
    inputs = s.normal(s.batch, s.size(1, 12), dim), s.ints(0, 20, s.batch), s.normal(dim), ring, cache
    return inputs, {"block_size": block, "rotary_dim": 2 * s.size(0, s.dim)}


def _append_kv(s: Sizes) -> Call:
    k, v = s.normal(s.rows, s.heads_kv, s.dim), s.normal(s.rows, s.heads_kv, s.dim_v)
    pages, page = s.size(1, 4), s.size(1, 6)
    caches = (torch.zeros(pages, s.heads_kv, page, d, dtype=s.dtype) for d in (s.dim, s.dim_v))
    k_cache, v_cache = caches
    slots = s.ints(-1, pages * page, s.rows)
    return ((k, v, slots, k_cache, v_cache) if s.flip() else (k, None, slots, k_cache)), {}


def _pack(s: Sizes) -> Call:
    k, v = (s.normal(s.batch, s.keys, s.heads_kv, d) for d in (s.dim, s.dim_v))
    return (k, v), {"page_size": s.size(1, 9)}


def _screen(s: Sizes) -> Call:
    return (s.normal(*(s.rows, s.heads_q)[: s.size(0, 2)], s.dim),), {}


def _expand(s: Sizes) -> Call:
    rows = (s.batch, s.rows)[: s.size(0, 2)]
    return (s.ints(-1, 9, *rows, s.size(1, 5)), s.ints(0, 40, *rows)), {"block_size": s.size(1, 5)}


def _topk(s: Sizes) -> Call:
    return (s.normal(*(s.batch, s.rows)[: s.size(0, 2)], s.keys, dtype=torch.float32), s.size(1, 9)), {}


CALLS: dict[str, Callable[[Sizes], Call]] = {
    "append_kv": _append_kv,
    "block_sparse_attention_single_q": _single_q,
    "block_sparse_gqa_prefill": _prefill,
    "block_sparse_gqa_prefill_state": _prefill,
    "cp_merge": _states,
    "mass_select": _free_select,
    "merge_states": _partials,
    "moba_select": _free_select,
    "msa_block_scores": _msa_index,
    "msa_select": _msa_select,
    "msa_sparse_attention": _msa,
    "msa_sparse_decode_attention": _msa_decode,
    "pack_kv_blocks": _pack,
    "qsa_append_keys": _append_keys,
    "qsa_compress_keys": _compress,
    "qsa_expand_blocks": _expand,
    "qsa_indexer_mqa_score": _qsa_index,
    "qsa_mqa_decode": _qsa_mqa_decode,
    "qsa_mqa_prefill": _qsa_mqa_prefill,
    "qsa_screen_keys": _screen,
    "qsa_select": _qsa_select,
    "qsa_select_tokens": _qsa_select,
    "qsa_sparse_attention": _qsa_attention,
    "topk_blocks": _topk,
}


def call_of(name: str, seed: int) -> Call:
    return CALLS[name](Sizes(seed))
