"""msa-prefill: block-sparse attention with one list per query block for all heads."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
from tessera.bench.case import MODEL, AttentionCase, Peer, giga_bytes, model_shape, samples, workspace_mib
from tessera.bench.peers import dense_peers, flex_block_mask
from tessera.check.bounds import AttentionTruth
from tessera.check.data import normal


class MsaPrefill(AttentionCase):
    name = "msa-prefill"
    help = "block-sparse attention, a list per query block for all heads"
    bound = "compute"
    defaults = MODEL

    def __init__(self, dtype: str, **sizes: Any) -> None:
        self.dtype = dtype
        self.shape = s = model_shape(**sizes)
        self.options = {"block_size": s["block"], "block_q": s["block_q"]}
        rng = np.random.default_rng(0)
        self.q = normal(rng, (s["B"], s["Sq"], s["Hq"], s["D"]), dtype)
        self.k, self.v = (normal(rng, (s["B"], s["Sk"], s["Hkv"], s["D"]), dtype) for _ in range(2))
        self.lists = _lists(s, rng)
        self.out = np.zeros_like(self.q)  # touched: a page fault per page of output would be timed otherwise
        self.gflop = _pairs(s, self.lists) * s["Hq"] * 4 * s["D"] / 1e9
        self.gbytes = giga_bytes(self.q, self.k, self.v, self.out, self.lists)

    def run(self) -> Any:
        return tessera.block_sparse_gqa_prefill(self.q, self.k, self.v, self.lists, out=self.out, **self.options)

    def peers(self) -> dict[str, Peer]:
        dense = dense_peers(self, _pairs(self.shape, self.lists))
        return {**dense, "torch_flex_block_mask": Peer(lambda _: flex_block_mask(self), lambda _: 1.0)}

    def check(self) -> float:
        s = self.shape
        offset, worst = s["Sk"] - s["Sq"], 0.0
        rng = np.random.default_rng(1)
        for b in {0, s["B"] - 1}:
            for t in samples(s["Sq"], 10, rng):
                one = slice(b, b + 1), slice(t, t + 1)
                n = t // s["block_q"]
                truth = AttentionTruth(
                    self.q[one], self.k[b : b + 1], self.v[b : b + 1], self.lists[b : b + 1, n : n + 1],
                    q_offset=t + offset, **self.options,
                )  # fmt: skip
                worst = max(worst, truth.out_share(self.out[one], self.dtype))
        return worst

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        text = tessera.explain(
            tessera.block_sparse_gqa_prefill, self.q, self.k, self.v, self.lists, out=self.out, **self.options
        )
        return {"workspace_mib": workspace_mib(text)}


def _positions(s: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the first and last query of each query block."""
    first = np.arange(0, s["Sq"], s["block_q"])
    last = np.minimum(first + s["block_q"], s["Sq"]) - 1
    return first + s["Sk"] - s["Sq"], last + s["Sk"] - s["Sq"]


def _lists(s: dict[str, int], rng: np.random.Generator) -> np.ndarray:
    """int32 [B, nQ, K]: what an indexer gives: the query block's own blocks, and others at random from before it."""
    first, last = _positions(s)
    lists = np.full((s["B"], first.size, s["K"]), -1, np.int32)
    for b in range(s["B"]):
        for n in range(first.size):
            own = np.arange(last[n] // s["block"], first[n] // s["block"] - 1, -1)[: s["K"]]
            earlier = rng.permutation(first[n] // s["block"])[: s["K"] - own.size]
            lists[b, n, : own.size] = own
            lists[b, n, own.size : own.size + earlier.size] = np.sort(earlier)
    return lists


def _pairs(s: dict[str, int], lists: np.ndarray) -> int:
    """(row, selected visible key) pairs of one head."""
    first, last = _positions(s)
    total = 0
    for n in range(first.size):
        position = np.arange(first[n], last[n] + 1)[:, None, None]
        ids = lists[:, n]
        begin = ids.astype(np.int64) * s["block"]
        end = np.minimum(begin + s["block"], s["Sk"])
        seen = np.clip(np.minimum(position + 1, end) - begin, 0, None)
        total += int(np.where(ids >= 0, seen, 0).sum())
    return total
