"""topk-blocks: the best blocks of scores at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, samples
from tessera.bench.peers import as_torch, torch_module
from tessera.check.data import normal


class TopkBlocks(Case):
    """Scores as the indexer has left them, in the caches if they fit, so that memory is no ceiling."""

    name = "topk-blocks"
    help = "the best blocks of given f32 scores"
    bound = ""
    defaults = {"keys": 16384, "rows": 64, "topk": 512}
    dtype = "f32"

    def __init__(self, keys: int, rows: int, topk: int) -> None:
        self.shape = {"Sq": rows, "N": keys, "K": topk}
        self.scores = normal(np.random.default_rng(0), (rows, keys), self.dtype)
        self.gbytes = (self.scores.nbytes + rows * topk * 4) / 1e9

    def run(self) -> Any:
        self.result = tessera.topk_blocks(self.scores, self.shape["K"])
        return self.result

    def peers(self) -> dict[str, Peer]:
        return {"torch_topk": Peer(self.torch_topk, lambda n: n or self.shape["Sq"], 1)}

    def torch_topk(self, rows: int | None) -> Callable[[], Any]:
        """Unsorted: the selection alone."""
        scores, topk = as_torch(self.scores)[:rows], min(self.shape["K"], self.shape["N"])
        return lambda: torch_module().topk(scores, topk, dim=1, sorted=False)

    def check(self) -> float:
        rows = samples(self.shape["Sq"], 10, np.random.default_rng(1))
        want = tessera.topk_blocks(self.scores[rows], self.shape["K"], backend="reference")
        return 0.0 if np.array_equal(self.result[rows], want) else np.inf
