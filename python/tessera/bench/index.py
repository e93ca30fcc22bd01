"""msa-select: choosing blocks for every row and index head by the scores of a trained indexer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, giga_bytes, samples
from tessera.bench.peers import as_torch, torch_module
from tessera.check.data import normal
from tessera.check.selection import Scores, tiers

CHUNK_ROWS = 256  # that the peer scores at a time: its scores of all rows would not fit


class MsaSelect(Case):
    name = "msa-select"
    help = "blocks by an indexer, a list per token and index head"
    bound = "compute"
    defaults = {
        "seq": 8192, "keys": None, "rows": None, "batch": 1, "heads_q": 4, "dim": 128, "block": 128, "topk": 16,
        "dtype": "bf16",
    }  # fmt: skip

    def __init__(
        self,
        seq: int,
        keys: int | None,
        rows: int | None,
        batch: int,
        heads_q: int,
        dim: int,
        block: int,
        topk: int,
        dtype: str,
    ) -> None:
        keys = keys or seq
        rows = rows or keys
        if rows > keys:
            raise ValueError(f"--rows is {rows}; expected up to the keys, {keys}")
        self.dtype = dtype
        self.shape = {"B": batch, "Sq": rows, "Sk": keys, "Hi": heads_q, "D": dim, "block": block, "K": topk}
        self.options = {"topk": topk, "block_size": block}
        rng = np.random.default_rng(0)
        self.q = normal(rng, (batch, rows, heads_q, dim), dtype)
        self.k = normal(rng, (batch, keys, 1, dim), dtype)
        self.gflop = self.pairs() * heads_q * 2 * dim / 1e9
        self.gbytes = giga_bytes(self.q, self.k) + batch * heads_q * rows * topk * 4 / 1e9

    def pairs(self, rows: int | None = None) -> float:
        """(row, visible key) pairs of the last `rows` rows that see more than K blocks: the others need no scores."""
        s = self.shape
        visible = np.arange(s["Sk"] - (rows or s["Sq"]), s["Sk"]) + 1
        return float(visible[-(-visible // s["block"]) > s["K"]].sum()) * s["B"]

    def run(self) -> Any:
        self.result = tessera.msa_select(self.q, self.k, **self.options)
        return self.result

    def peers(self) -> dict[str, Peer]:
        rows = max(1, min(CHUNK_ROWS, self.shape["Sq"] // 2))
        return {"torch_dense_scores": Peer(lambda n: dense_scores(self, n), self.pairs, rows)}

    def check(self) -> float:
        s = self.shape
        worst = 0.0
        for b in {0, s["B"] - 1}:
            for t in samples(s["Sq"], 4, np.random.default_rng(1)):
                for head in range(s["Hi"]):
                    scores = self.scores(b, t, head)
                    worst = max(worst, scores.share(self.result[b, head, t], best(scores, s["K"])))
        return worst

    def scores(self, b: int, t: int, head: int) -> Scores:
        """Of all blocks for one row and head, in double precision."""
        s = self.shape
        visible = s["Sk"] - s["Sq"] + t + 1
        blocks = -(-s["Sk"] // s["block"])
        value, magnitude = np.full(blocks, -np.inf), np.zeros(blocks)
        q = self.q[b, t, head].astype(np.float64)
        step = -(-(1 << 16) // s["block"]) * s["block"]
        for begin in range(0, visible, step):
            k = self.k[b, begin : min(begin + step, visible), 0].astype(np.float64)
            starts = np.arange(0, k.shape[0], s["block"])
            at = slice(begin // s["block"], begin // s["block"] + starts.size)
            value[at] = np.maximum.reduceat(k @ q, starts)
            magnitude[at] = np.maximum.reduceat(np.abs(k) @ np.abs(q), starts)
        return Scores(tiers(np.array([visible - 1]), blocks, s["block"], 1, 0), value, magnitude)


def best(scores: Scores, topk: int) -> np.ndarray:
    """The list by the rule."""
    order = np.lexsort((-scores.value, -scores.tier))[:topk]
    return np.sort(order[scores.tier[order] > 0]).astype(np.int32)


def dense_scores(case: MsaSelect, rows: int | None) -> Callable[[], Any]:
    """The selection as modelling code writes it: scores of every key, mask, maximum per block, topk."""
    torch = torch_module()
    s = case.shape
    q, k = as_torch(case.q)[:, s["Sq"] - (rows or s["Sq"]) :], as_torch(case.k)[:, :, 0]
    blocks = -(-s["Sk"] // s["block"])
    spare = blocks * s["block"] - s["Sk"]
    key = torch.arange(s["Sk"])

    def run() -> Any:
        lists = []
        with torch.no_grad():
            for first in range(0, q.shape[1], CHUNK_ROWS):
                part = q[:, first : first + CHUNK_ROWS].transpose(1, 2)
                position = torch.arange(part.shape[2]) + s["Sk"] - q.shape[1] + first
                scores = (part @ k[:, None].transpose(2, 3)).float()
                scores = scores.masked_fill(key > position[:, None], -torch.inf)
                scores = torch.nn.functional.pad(scores, (0, spare), value=-torch.inf)
                scores = scores.unflatten(3, (blocks, s["block"])).amax(4)
                scores.scatter_(
                    3, (position // s["block"])[None, None, :, None].expand(*scores.shape[:3], 1), torch.inf
                )
                lists.append(scores.topk(min(s["K"], blocks), dim=3).indices)
        return torch.cat(lists, 2)

    return run
