"""msa-prefill-token: block-sparse attention with a list per token and KV head, as MiniMax-M3 attends."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
from tessera.bench.case import MODEL, AttentionCase, Peer, giga_bytes, model_shape, samples, workspace_mib
from tessera.bench.peers import dense_peers
from tessera.bench.rows import row_lists, row_share, selected_keys, visible_pairs
from tessera.check.data import normal


class MsaPrefillToken(AttentionCase):
    name = "msa-prefill-token"
    help = "block-sparse attention, a list per token and KV head"
    bound = "compute"
    defaults = {key: value for key, value in MODEL.items() if key != "block_q"} | {"overlap": 0.9}

    def __init__(self, dtype: str, overlap: float, **sizes: Any) -> None:
        self.dtype = dtype
        s = model_shape(**sizes, block_q=1)
        self.shape = s | {"overlap": overlap}
        rng = np.random.default_rng(0)
        self.q = normal(rng, (s["B"], s["Sq"], s["Hq"], s["D"]), dtype)
        self.k, self.v = (normal(rng, (s["B"], s["Sk"], s["Hkv"], s["D"]), dtype) for _ in range(2))
        self.positions = np.arange(s["Sk"] - s["Sq"], s["Sk"])
        lists = [row_lists(rng, self.positions, s["Hkv"], s["block"], s["K"], overlap) for _ in range(s["B"])]
        self.lists = np.concatenate(lists, axis=1)
        self.out = np.zeros_like(self.q)  # touched: a page fault per page of output would be timed otherwise
        tokens = {"cu_seqlens_q": s["Sq"], "cu_seqlens_k": s["Sk"]}
        self.options: dict[str, Any] = {
            name: np.arange(s["B"] + 1, dtype=np.int32) * np.int32(n) for name, n in tokens.items()
        }
        self.options |= {"block_size": s["block"], "out": self.out.reshape(-1, s["Hq"], s["D"])}
        self.pairs = visible_pairs(self.lists, np.tile(self.positions, s["B"]), s["block"])
        self.gflop = self.pairs * (s["Hq"] // s["Hkv"]) * 4 * s["D"] / 1e9
        self.gbytes = giga_bytes(self.q, self.k, self.v, self.out, self.lists)

    @property
    def inputs(self) -> list[np.ndarray]:
        return [*(x.reshape(-1, *x.shape[2:]) for x in (self.q, self.k, self.v)), self.lists]

    def run(self) -> Any:
        return tessera.msa_sparse_attention(*self.inputs, **self.options)

    def peers(self) -> dict[str, Peer]:
        return dense_peers(self, self.pairs / self.shape["Hkv"])

    def check(self) -> float:
        s = self.shape
        group, worst = s["Hq"] // s["Hkv"], 0.0
        rng = np.random.default_rng(1)
        for b in {0, s["B"] - 1}:
            for t in samples(s["Sq"], 10, rng):
                for head in {0, s["Hkv"] - 1}:
                    keys = selected_keys(self.lists[head, b * s["Sq"] + t], self.positions[t], s["block"])
                    at = b, t, slice(head * group, (head + 1) * group)
                    k, v = (x[b, keys, head] for x in (self.k, self.v))
                    worst = max(worst, row_share(self.out[at], self.q[at], k, v, self.dtype))
        return worst

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        text = tessera.explain(tessera.msa_sparse_attention, *self.inputs, **self.options)
        return {"workspace_mib": workspace_mib(text)}
