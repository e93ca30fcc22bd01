"""qsa-indexer: all that the indexer of QSA does for a prompt, from raw index keys to token lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, giga_bytes, samples
from tessera.bench.peers import as_torch, torch_module
from tessera.bench.qsa_index import Index
from tessera.bench.qsa_keys import torch_keys, torch_rotation
from tessera.check.data import normal

CALLS = 4096  # tokens


class QsaIndexer(Case):
    """With the model's 512 blocks, rows before token 2,051 list all of their prefix, and only others need scores.

    The check takes the compressed keys for granted, which qsa-compress checks.
    """

    name = "qsa-indexer"
    help = "compression, selection and token lists of a whole prompt"
    bound = ""
    defaults = {"seq": 2048, "heads_q": 4, "dim": 128, "block": 4, "topk": 512, "dtype": "bf16"}

    def __init__(self, seq: int, heads_q: int, dim: int, block: int, topk: int, dtype: str) -> None:
        if block > seq:
            raise ValueError(f"--block is {block}; expected up to --seq, {seq}")
        self.dtype = dtype
        sizes = {"B": 1, "Sq": seq, "N": seq // block, "Hi": heads_q, "D": dim, "block": block}
        self.shape = sizes | {"K": topk}
        rng = np.random.default_rng(0)
        self.raw, self.weight = normal(rng, (1, seq, dim), dtype), normal(rng, (dim,), dtype)
        self.rule = {"block_size": block, "rotary_dim": dim // 4 * 2}
        self.index = Index(rng, sizes, dtype, np.arange(seq), None, cold=False)
        self.gflop = self.index.gflop(topk)
        self.gbytes = giga_bytes(self.index.q, self.raw) + seq * (topk * block + block - 1) * 4 / 1e9

    def run(self) -> Any:
        tessera.qsa_compress_keys(self.raw, self.weight, out=self.index.k[0], **self.rule)
        budget = self.shape["K"] * self.shape["block"]
        self.tokens = self.index.next_call(tessera.qsa_select_tokens, budget=budget)
        return self.tokens

    def peers(self) -> dict[str, Peer]:
        s = self.shape
        probe = max(s["block"], s["Sq"] // 8)
        return {"torch_modelling_code": Peer(self.modelling_code, self._queries, probe)}

    def _queries(self, count: int | None) -> float:
        """The time of the first `count` queries, about: torch's calls, worth so many tokens, and keys that grow with them."""
        n = count or self.shape["Sq"]
        return float(n * (n + CALLS))

    def modelling_code(self, tokens: int | None) -> Callable[[], Any]:
        """As the public Qwen4-Exp code for any attention mask: query by query, each cuts the tokens that it sees into blocks."""
        torch = torch_module()
        s, block = self.shape, self.shape["block"]
        count = tokens or s["Sq"]
        q, raw, weight = as_torch(self.index.q)[0], as_torch(self.raw)[0], 1 + as_torch(self.weight).float()
        cos, sin = torch_rotation(torch.arange(count), self.rule["rotary_dim"] // 2, raw.dtype)
        mask = torch.ones(count, count, dtype=torch.bool).tril()

        def select(t: int) -> Any:
            seen = mask[t].nonzero()[:, 0]
            whole = seen.numel() // block * block
            blocks = seen[:whole].view(-1, block)
            keys = torch_keys(raw[blocks], weight, cos[blocks[:, 0]], sin[blocks[:, 0]])
            scores = torch.relu((q[t] @ keys.T).float()).sum(0) * self.index.scale
            chosen = scores.topk(min(s["K"], blocks.shape[0])).indices
            return torch.cat((blocks[chosen].flatten(), seen[whole:]))

        def run() -> Any:
            with torch.no_grad():
                return [select(t) for t in range(count)]

        return run

    def check(self) -> float:
        rows = samples(self.shape["Sq"], 20, np.random.default_rng(1))
        return max(self.index.tokens_share(0, t, self.tokens[0, t]) for t in rows)
