"""merge: joining the partial results of key shards."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, giga_bytes, samples
from tessera.bench.peers import torch_merge
from tessera.check.bounds import LOG_BOUND, out_share, share
from tessera.check.data import normal

SHARDS = 4


class Merge(Case):
    name = "merge"
    help = f"merge_states of {SHARDS} partial results"
    bound = "stream"
    defaults = {"rows": 8192, "batch": 1, "heads_q": 64, "dim": 128, "dtype": "bf16"}

    def __init__(self, rows: int, batch: int, heads_q: int, dim: int, dtype: str) -> None:
        self.dtype = dtype
        self.shape = {"B": batch, "Sq": rows, "Hq": heads_q, "D": dim, "shards": SHARDS}
        rng = np.random.default_rng(0)
        self.partials = [
            (normal(rng, (batch, rows, heads_q, dim), dtype), normal(rng, (batch, rows, heads_q), "f32"))
            for _ in range(SHARDS)
        ]
        out, lse = self.partials[0]
        self.gbytes = (SHARDS + 1) * giga_bytes(out, lse)

    def run(self) -> Any:
        self.result = tessera.merge_states(self.partials)
        return self.result

    def peers(self) -> dict[str, Peer]:
        return {"torch_merge": Peer(lambda _: torch_merge(self.partials), lambda _: 1.0)}

    def check(self) -> float:
        worst = 0.0
        for t in samples(self.shape["Sq"], 10, np.random.default_rng(1)):
            rows = [(out[:, t].astype(np.float32), lse[:, t]) for out, lse in self.partials]
            want, want_lse = tessera.merge_states(rows, backend="reference")
            spread, _ = tessera.merge_states([(np.abs(out), lse) for out, lse in rows], backend="reference")
            out, lse = (x[:, t] for x in self.result)
            worst = max(worst, out_share(out, want.astype(np.float64), spread.astype(np.float64), self.dtype))
            worst = max(worst, share(lse, want_lse.astype(np.float64), LOG_BOUND[self.dtype]))
        return worst
