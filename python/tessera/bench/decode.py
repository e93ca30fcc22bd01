"""msa-decode: one row, or a few, of each request over a paged cache of its whole context."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import MODEL, Case, Peer, giga_bytes, model_shape, samples, workspace_mib
from tessera.bench.memory import beyond_caches, random_caches
from tessera.bench.peers import decode_peers
from tessera.bench.rows import row_lists, row_share, selected_keys, visible_pairs
from tessera.check.data import normal


class MsaDecode(Case):
    """Calls take turns with several sets of lists, so that what is read does not stay in the caches; pages lie in random order.

    The ceiling is a bare read of the same keys and values. But each number that is read is multiplied and added once per
    head of its group, and with 16 of them a CPU without bf16 dots cannot keep up with its memory: there the arithmetic
    is the bound. `arithmetic` in the output is the share of that ceiling.
    """

    name = "msa-decode"
    help = "a list per row and KV head, one row per request, keys in pages"
    bound = "gather"
    defaults = {key: value for key, value in MODEL.items() if key != "block_q"}
    defaults |= {"seq": 131072, "batch": 32, "rows": 1, "overlap": 0.9, "page_size": 128, "layout": "rowmajor"}

    def __init__(self, dtype: str, overlap: float, page_size: int, layout: str, **sizes: Any) -> None:
        self.dtype = dtype
        s = model_shape(**sizes, block_q=1)
        self.shape = s | {"page": page_size, "overlap": overlap, "layout": layout}
        self.positions = np.arange(s["Sk"] - s["Sq"], s["Sk"])
        rng = np.random.default_rng(0)
        self.q = normal(rng, (s["B"] * s["Sq"], s["Hq"], s["D"]), dtype)
        self._make_cache(rng)
        self.caches = self._packed_caches() if layout == "packed" else (self.k, self.v)
        self.out = np.zeros_like(self.q)
        self.options = {
            "page_table": self.table,
            "seqused_k": np.full(s["B"], s["Sk"], np.int32),
            "seqlen_q": s["Sq"],
            "block_size": s["block"],
            "out": self.out,
        }
        self._make_lists(rng, overlap)
        self.turn = 0

    def _make_cache(self, rng: np.random.Generator) -> None:
        s, size = self.shape, self.shape["page"]
        pages = -(-s["Sk"] // size)
        shape = (s["B"] * pages, s["Hkv"], size, s["D"])
        # The largest piece of a block that lies in one page, wherever the block begins.
        self.piece_keys = math.gcd(size, s["block"])
        self.piece_bytes = self.piece_keys * s["D"] * self.q.itemsize
        if self.piece_bytes % 64 != 0:
            raise ValueError(
                f"--page-size {size} and --block {s['block']} cut keys into pieces of {self.piece_bytes} bytes; expected"
                " a multiple of 64"
            )
        self.k, self.v = random_caches("keys and values", 2, shape, rng, self.dtype)
        self.table = rng.permutation(shape[0]).astype(np.int32).reshape(s["B"], pages)

    def _packed_caches(self) -> tuple[np.ndarray, np.ndarray]:
        """The same random numbers, read as pages in the packed layout of `append_kv`."""
        pages, heads, size, dim = self.k.shape
        e = 4 // self.k.itemsize
        if size != self.piece_keys or size % e or dim % e:
            raise ValueError(
                f"--layout packed is measured where --page-size divides --block, and --page-size and --dim {e}; they are"
                f" {size}, {self.shape['block']} and {dim}"
            )
        return self.k.reshape(pages, heads, dim // e, size, e), self.v.reshape(pages, heads, size // e, dim, e)

    def _make_lists(self, rng: np.random.Generator, overlap: float) -> None:
        """As many sets as read twice what the caches of all threads hold, or all that there is."""
        s = self.shape
        least = min(beyond_caches(), 2 * self.k.nbytes)
        self.lists: list[np.ndarray] = []
        self.addresses: list[np.ndarray] = []
        while sum(a.size for a in self.addresses) * self.piece_bytes < least:
            requests = [row_lists(rng, self.positions, s["Hkv"], s["block"], s["K"], overlap) for _ in range(s["B"])]
            self.lists.append(np.concatenate(requests, axis=1))
            self.addresses.append(self._addresses(self.lists[-1]))
        turns = len(self.lists)
        positions = np.tile(self.positions, s["B"])
        self.pairs = sum(visible_pairs(lists, positions, s["block"]) for lists in self.lists) / turns
        self.gflop = self.pairs * (s["Hq"] // s["Hkv"]) * 4 * s["D"] / 1e9
        read = sum(a.size for a in self.addresses) * self.piece_bytes / turns
        self.gbytes = read / 1e9 + giga_bytes(self.q, self.out)

    def _piece(self, request: Any, head: Any, key: Any) -> np.ndarray:
        """Which piece of the pages holds a key, the first of a piece."""
        s, size = self.shape, self.shape["page"]
        page = self.table[request, key // size].astype(np.int64)
        return ((page * s["Hkv"] + head) * size + key % size) // self.piece_keys

    def _addresses(self, lists: np.ndarray) -> np.ndarray:
        """Of the pieces of keys, and then of values, that the rows of a request together read, in order."""
        s = self.shape
        found = []
        for b, head in np.ndindex(s["B"], s["Hkv"]):
            ids = np.unique(lists[head, b * s["Sq"] : (b + 1) * s["Sq"]])
            keys = ids[ids >= 0].astype(np.int64)[:, None] * s["block"] + np.arange(0, s["block"], self.piece_keys)
            piece = self._piece(b, head, keys[keys < s["Sk"]])
            found += [cache.ctypes.data + piece * self.piece_bytes for cache in (self.k, self.v)]
        return np.concatenate(found).astype(np.uint64)

    def selected(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of the listed keys, int64 [rows, Hkv, pieces], and which of the keys are seen, bool [rows, Hkv, keys]."""
        s = self.shape
        keys = lists.swapaxes(0, 1)[..., None].astype(np.int64) * s["block"] + np.arange(s["block"])
        rows = np.arange(s["B"] * s["Sq"])
        keys = keys.reshape(rows.size, s["Hkv"], -1)
        seen = (keys >= 0) & (keys <= self.positions[rows % s["Sq"], None, None])
        first = np.clip(keys[..., :: self.piece_keys], 0, s["Sk"] - 1)
        return self._piece(rows[:, None, None] // s["Sq"], np.arange(s["Hkv"])[:, None], first), seen

    def run(self) -> Any:
        self.turn = (self.turn + 1) % len(self.lists)
        return tessera.msa_sparse_decode_attention(self.q, *self.caches, self.lists[self.turn], **self.options)

    def pieces(self) -> tuple[np.ndarray, int]:
        return np.concatenate(self.addresses), self.piece_bytes

    def peers(self) -> dict[str, Peer]:
        return decode_peers(self)

    def check(self) -> float:
        s, size = self.shape, self.shape["page"]
        group, worst = s["Hq"] // s["Hkv"], 0.0
        for row in samples(self.q.shape[0], 10, np.random.default_rng(1)):
            for head in {0, s["Hkv"] - 1}:
                keys = selected_keys(self.lists[self.turn][head, row], self.positions[row % s["Sq"]], s["block"])
                pages = self.table[row // s["Sq"], keys // size]
                at = row, slice(head * group, (head + 1) * group)
                k, v = self._rows(pages, head, keys % size)
                worst = max(worst, row_share(self.out[at], self.q[at], k, v, self.dtype))
        return worst

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        inputs = self.q, self.k, self.v, self.lists[0]
        text = tessera.explain(tessera.msa_sparse_decode_attention, *inputs, **self.options)
        cache = self.k.nbytes + self.v.nbytes
        return {
            "workspace_mib": workspace_mib(text),
            "cache_gib": round(cache / 2**30, 2),
            "sets_of_lists": len(self.lists),
        }

    def _rows(self, pages: np.ndarray, head: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [keys, D]."""
        k, v = self.caches
        if k.ndim == 4:
            return k[pages, head, slots], v[pages, head, slots]
        e = k.shape[-1]
        return k[pages, head, :, slots].reshape(slots.size, -1), v[pages, head, slots // e, :, slots % e]
