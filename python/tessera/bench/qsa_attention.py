"""qsa-prefill and qsa-decode: attention over the tokens of selected blocks, with one list per token for all heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import MODEL, Case, Peer, giga_bytes, model_shape, samples, workspace_mib
from tessera.bench.memory import beyond_caches, random_caches
from tessera.bench.peers import as_torch, torch_module
from tessera.bench.rows import row_lists, row_share
from tessera.check.data import normal

QSA = {key: value for key, value in MODEL.items() if key != "block_q"}
QSA |= {"seq": 65536, "heads_q": 24, "heads_kv": 2, "dim": 256, "block": 4, "topk": 512}
CHUNK_ROWS = 32  # whose keys the peer gathers at a time


PACKED_TOKENS = 4  # of a page in the packed layout


class Cache:
    """Keys and values: [B, Sk, Hkv, D], or pages [P, ps, Hkv, D] in random order; or the same numbers as packed pages."""

    def __init__(
        self, rng: np.random.Generator, s: dict[str, int], dtype: str, page_size: int | None, packed: bool = False
    ) -> None:
        self.size = page_size or s["Sk"]
        pages = -(-s["Sk"] // self.size)
        shape = s["B"] * pages, self.size, s["Hkv"], s["D"]
        self.k, self.v = random_caches("keys and values", 2, shape, rng, dtype)
        self.options: dict[str, Any] = {"seq_lens_k": np.full(s["B"], s["Sk"], np.int32)}
        self.table = np.arange(s["B"], dtype=np.int32)[:, None]
        if page_size:
            self.table = rng.permutation(s["B"] * pages).astype(np.int32).reshape(s["B"], pages)
            self.options["block_table"] = self.table
        self.given = self._packed() if packed else (self.k, self.v)
        self.packed = packed

    def _packed(self) -> tuple[np.ndarray, np.ndarray]:
        """The same memory, read as pages of four tokens."""
        heads, dim = self.k.shape[2:]
        n, e = PACKED_TOKENS, 4 // self.k.itemsize
        if self.size % n or dim % e:
            raise ValueError(
                f"--layout packed is measured where pages have a multiple of {n} tokens and --dim is one of {e}; they are"
                f" {self.size} and {dim}"
            )
        self.options |= {"block_table": self.table, "page_size": self.size}
        return self.k.reshape(-1, heads, dim // e, n, e), self.v.reshape(-1, heads, n // e, dim, e)

    def slots(self, request: Any, token: Any) -> Any:
        """Rows of the memory that hold tokens."""
        return self.table[request, token // self.size].astype(np.int64) * self.size + token % self.size

    def rows(self, request: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [tokens, Hkv, D] of one request."""
        slots = self.slots(request, tokens)
        if not self.packed:
            k, v = (x.reshape(-1, *x.shape[2:]) for x in (self.k, self.v))
            return k[slots], v[slots]
        k, v = self.given
        (page, slot), e = divmod(slots, PACKED_TOKENS), k.shape[-1]
        return k[page, :, :, slot].reshape(slots.size, *self.k.shape[2:]), v[page, :, slot // e, :, slot % e]


def block_lists(rng: np.random.Generator, s: dict[str, int], positions: np.ndarray, overlap: float) -> np.ndarray:
    """int32 [B, Sq, K]: what the indexer selects: complete blocks, among them the row's last one."""
    last = (positions + 1) // s["block"] - 1
    lists = [row_lists(rng, last * s["block"], 1, s["block"], s["K"], overlap)[0] for _ in range(s["B"])]
    return np.stack(lists)


def attention_share(case: Any, b: int, t: int, tokens: np.ndarray) -> float:
    """The error of one row over a list. case: q and out [B, Sq, Hq, D], and cache."""
    group = case.q.shape[2] // case.cache.k.shape[2]
    k, v = case.cache.rows(b, tokens[tokens >= 0])
    worst = 0.0
    for head in range(k.shape[1]):
        at = b, t, slice(head * group, (head + 1) * group)
        worst = max(worst, row_share(case.out[at], case.q[at], k[:, head], v[:, head], case.dtype))
    return worst


class _TokenAttention(Case):
    lists: list[np.ndarray]  # int32 [B, Sq, W] of tokens; calls take turns with them

    def __init__(self, dtype: str, rows: int, overlap: float, page_size: int | None, layout: str, **sizes: Any) -> None:
        self.dtype, self.turn = dtype, 0
        s = model_shape(**sizes, rows=rows, block_q=1)
        self.shape = s | {"overlap": overlap, "layout": layout} | ({"page": page_size} if page_size else {})
        self.rng = np.random.default_rng(0)
        self.positions = np.arange(s["Sk"] - s["Sq"], s["Sk"])
        self.q = normal(self.rng, (s["B"], s["Sq"], s["Hq"], s["D"]), dtype)
        self.cache = Cache(self.rng, s, dtype, page_size, layout == "packed")
        self.out = np.zeros_like(self.q)  # touched: a page fault per page of output would be timed otherwise
        where = np.broadcast_to(self.positions.astype(np.int32), (s["B"], s["Sq"]))
        self.options = {"query_positions": where, "out": self.out, **self.cache.options}

    def new_list(self) -> np.ndarray:
        ids = block_lists(self.rng, self.shape, self.positions, self.shape["overlap"])
        return tessera.qsa_expand_blocks(ids, self.options["query_positions"], block_size=self.shape["block"])

    def count(self) -> None:
        """What a call computes, and reads of keys and values: each token of a request once."""
        s, turns = self.shape, len(self.lists)
        pairs = sum(int((tokens >= 0).sum()) for tokens in self.lists) / turns
        self.gflop = pairs * s["Hq"] * 4 * s["D"] / 1e9
        tokens = sum(np.unique(request[request >= 0]).size for tokens in self.lists for request in tokens) / turns
        token_bytes = 2 * s["Hkv"] * s["D"] * self.q.itemsize
        self.gbytes = tokens * token_bytes / 1e9 + giga_bytes(self.q, self.out, self.lists[0])

    def run(self) -> Any:
        self.turn = (self.turn + 1) % len(self.lists)
        return tessera.qsa_sparse_attention(*self.inputs, self.lists[self.turn], **self.options)

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return self.q, *self.cache.given

    def peers(self) -> dict[str, Peer]:
        rows = self.shape["Sq"]
        return {"torch_gather_sdpa": Peer(self.gather_sdpa, lambda n: n or rows, max(1, min(CHUNK_ROWS, rows // 2)))}

    def gather_sdpa(self, rows: int | None) -> Callable[[], Any]:
        """index_select of the listed tokens, then scaled_dot_product_attention with a mask of the unused places."""
        torch = torch_module()
        s, lists = self.shape, self.lists[0][:, -(rows or self.shape["Sq"]) :]
        request = np.arange(s["B"])[:, None, None]
        slots = torch.from_numpy(self.cache.slots(request, np.maximum(lists, 0))).flatten(0, 1)
        used = torch.from_numpy(lists >= 0).flatten(0, 1)[:, None, None]
        # To torch the heads of a group are queries that share their keys, many times faster than enable_gqa.
        q = as_torch(self.q)[:, -lists.shape[1] :].reshape(-1, s["Hkv"], s["Hq"] // s["Hkv"], s["D"])
        k, v = (as_torch(x.reshape(-1, s["Hkv"] * s["D"])) for x in (self.cache.k, self.cache.v))
        attend = torch.nn.functional.scaled_dot_product_attention

        def chunk(at: slice) -> Any:
            picked = [torch.index_select(x, 0, slots[at].flatten()) for x in (k, v)]
            picked = [x.view(-1, slots.shape[1], s["Hkv"], s["D"]).transpose(1, 2) for x in picked]
            return attend(q[at], *picked, attn_mask=used[at])

        def run() -> Any:
            with torch.no_grad():
                parts = (slice(i, i + CHUNK_ROWS) for i in range(0, q.shape[0], CHUNK_ROWS))
                return torch.cat([chunk(at) for at in parts])

        return run

    def check(self) -> float:
        rows = samples(self.shape["B"] * self.shape["Sq"], 10, np.random.default_rng(1))
        at = [divmod(row, self.shape["Sq"]) for row in rows]
        return max(attention_share(self, b, t, self.lists[self.turn][b, t]) for b, t in at)

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        text = tessera.explain(tessera.qsa_sparse_attention, *self.inputs, self.lists[0], **self.options)
        return {"workspace_mib": workspace_mib(text)}


class QsaPrefill(_TokenAttention):
    """The last rows of a prompt. Of those before token 2,051 lists hold all of the prefix: --seq 2048 --rows 2048."""

    name = "qsa-prefill"
    help = "attention over selected tokens, a list per token for all heads"
    bound = "compute"
    defaults = QSA | {"overlap": 0.9, "page_size": None, "layout": "rowmajor"}

    def __init__(self, seq: int, rows: int | None, **options: Any) -> None:
        super().__init__(seq=seq, rows=rows or min(seq, 512), **options)
        self.lists = [self.new_list()]
        self.count()


class QsaDecode(_TokenAttention):
    """Calls take turns with several sets of lists, so that what is read does not stay in the caches."""

    name = "qsa-decode"
    help = "the same for one row per request, keys in pages"
    bound = "gather"
    defaults = QSA | {"rows": 1, "batch": 32, "overlap": 0.9, "page_size": 256, "layout": "rowmajor"}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        s = self.shape
        self.piece_tokens = math.gcd(s["page"], s["block"])
        self.piece_bytes = self.piece_tokens * s["Hkv"] * s["D"] * self.q.itemsize
        if self.piece_bytes % 64 != 0:
            raise ValueError(
                f"--page-size {s['page']} and --block {s['block']} cut keys into pieces of {self.piece_bytes} bytes;"
                " expected a multiple of 64"
            )
        least = min(beyond_caches(), 2 * self.cache.k.nbytes)
        self.lists, self.addresses = [], []
        while sum(a.size for a in self.addresses) * self.piece_bytes < least:
            self.lists.append(self.new_list())
            self.addresses.append(self._addresses(self.lists[-1]))
        self.count()

    def _addresses(self, lists: np.ndarray) -> np.ndarray:
        """Of the pieces of keys, and then of values, that the rows of a request together read, in order."""
        found = []
        for b, tokens in enumerate(lists):
            first = np.unique(tokens[tokens >= 0] // self.piece_tokens) * self.piece_tokens
            offset = self.cache.slots(b, first) // self.piece_tokens * self.piece_bytes
            found += [cache.ctypes.data + offset for cache in (self.cache.k, self.cache.v)]
        return np.concatenate(found).astype(np.uint64)

    def pieces(self) -> tuple[np.ndarray, int]:
        return np.concatenate(self.addresses), self.piece_bytes

    def peers(self) -> dict[str, Peer]:
        return {"tessera_scattered_tokens": Peer(lambda _: self.scattered(), lambda _: 1.0), **super().peers()}

    def scattered(self) -> Callable[[], Any]:
        """As many tokens as in the lists, but of no block."""
        turns = itertools.cycle([self._scatter(tokens) for tokens in self.lists])
        options = self.options | {"out": np.zeros_like(self.out)}
        return lambda: tessera.qsa_sparse_attention(*self.inputs, next(turns), **options)

    def _scatter(self, lists: np.ndarray) -> np.ndarray:
        scattered = np.full_like(lists, -1)
        for at in np.ndindex(lists.shape[:2]):
            count, visible = int((lists[at] >= 0).sum()), int(self.positions[at[1]]) + 1
            scattered[at][:count] = np.sort(self.rng.choice(visible, count, replace=False))
        return scattered

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        cache = self.cache.k.nbytes + self.cache.v.nbytes
        return {
            **super().extra(line),
            "cache_gib": round(cache / 2**30, 2),
            "sets_of_lists": len(self.lists),
        }
