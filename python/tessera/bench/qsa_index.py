"""qsa-score and qsa-select: the indexer of QSA over compressed keys, for many rows or for a decoding one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, giga_bytes, samples
from tessera.bench.index import best
from tessera.bench.memory import beyond_caches, random_caches
from tessera.bench.peers import as_torch, torch_module
from tessera.check.bounds import share
from tessera.check.data import normal
from tessera.check.selection import BY_SCORE, INVISIBLE, SCORE_BOUND, Scores

CHUNK_ROWS = 64  # that the peer scores at a time: the products of all rows would not fit
STEP_KEYS = 1 << 16  # that are scored at a time in double precision


class Index:
    """Index queries, and compressed keys of their requests: contiguous, or in pages in random order.

    With `cold`, calls take turns with so many sets of keys that what is read does not come out of the caches.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        s: dict[str, int],
        dtype: str,
        positions: np.ndarray,
        page_size: int | None,
        cold: bool,
    ) -> None:
        """s: sizes B, Sq, N keys of each request, Hi, D, block; positions: of the rows of every request."""
        self.shape, self.positions, self.turn = s, positions, 0
        self.q = normal(rng, (s["B"], s["Sq"], s["Hi"], s["D"]), dtype)
        size = page_size or s["N"]
        pages = -(-s["N"] // size)
        keys = s["B"] * pages * size * s["D"] * self.q.itemsize
        self.sets = math.ceil(beyond_caches() / keys) if cold else 1
        self.k = random_caches("index keys", self.sets, (s["B"] * pages, size, s["D"]), rng, dtype)
        self.tables = [rng.permutation(s["B"] * pages).astype(np.int32).reshape(s["B"], pages) for _ in self.k]
        self.options: dict[str, Any] = {
            "block_size": s["block"],
            "query_positions": np.broadcast_to(positions.astype(np.int32), (s["B"], s["Sq"])),
        }
        self.paged = page_size is not None
        self.visible = np.minimum((positions + 1) // s["block"], s["N"])
        self.scale = s["D"] ** -0.5

    def next_call(self, operator: Callable[..., Any], **options: Any) -> Any:
        self.turn = (self.turn + 1) % self.sets
        return self._call(operator, self.turn, **options)

    def _call(self, operator: Callable[..., Any], turn: int, **options: Any) -> Any:
        table = {"block_table": self.tables[turn]} if self.paged else {}
        return operator(self.q, self.k[turn], **table, **self.options, **options)

    def peer_turns(self) -> Iterator[int]:
        """Turns as far as can be from those of the case, of which `turn` is the last."""
        return itertools.cycle(np.roll(np.arange(self.sets), self.sets // 2).tolist())

    def bare_scores(self) -> Callable[[], Any]:
        """The scores alone, which are written to memory."""
        turns = self.peer_turns()
        return lambda: self._call(tessera.qsa_indexer_mqa_score, next(turns))

    def screened(self, budget: int) -> Callable[[], Any]:
        """The selection with copies of the keys in 8 bits, which are made before."""
        screens = [tessera.qsa_screen_keys(keys) for keys in self.k]
        turns = self.peer_turns()

        def run() -> Any:
            turn = next(turns)
            return self._call(tessera.qsa_select, turn, budget=budget, screen=screens[turn])

        return run

    def gflop(self, beyond: int = 0) -> float:
        """Of the scores of all rows that see more than `beyond` keys."""
        s = self.shape
        return float(self.visible[self.visible > beyond].sum()) * s["B"] * s["Hi"] * 2 * s["D"] / 1e9

    def gbytes(self) -> float:
        """Of queries and visible keys."""
        s = self.shape
        return giga_bytes(self.q) + s["B"] * int(self.visible.max()) * s["D"] * self.q.itemsize / 1e9

    def scores(self, b: int, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Of all keys for one row, in double precision, and what their error is relative to."""
        n, size = int(self.visible[t]), self.k[0].shape[1]
        value, magnitude = np.full(self.shape["N"], -np.inf), np.zeros(self.shape["N"])
        q = self.q[b, t].astype(np.float64)
        for begin in range(0, n, STEP_KEYS):
            keys = np.arange(begin, min(begin + STEP_KEYS, n))
            k = self.k[self.turn][self.tables[self.turn][b, keys // size], keys % size].astype(np.float64)
            value[keys] = np.maximum(k @ q.T, 0).sum(axis=1) * self.scale
            magnitude[keys] = (np.abs(k) @ np.abs(q).T).sum(axis=1) * self.scale
        return value, magnitude

    def selection_share(self, b: int, t: int, ids: np.ndarray) -> float:
        """The error of one row's list."""
        value, magnitude = self.scores(b, t)
        scores = Scores(np.where(np.isneginf(value), INVISIBLE, BY_SCORE), value, magnitude)
        return scores.share(ids, best(scores, ids.size))

    def tokens_share(self, b: int, t: int, tokens: np.ndarray) -> float:
        """The error of one row's list of tokens: of the blocks in it, ascending, and behind them the incomplete one."""
        block = self.shape["block"]
        tail = np.arange(self.visible[t] * block, self.positions[t] + 1)
        listed = tokens[: (tokens >= 0).sum() - tail.size]
        first = listed[::block]
        ids = np.full((tokens.size - block + 1) // block, -1, np.int32)
        ids[: first.size] = first // block
        want = np.concatenate([(first[:, None] + np.arange(block)).ravel(), tail])
        return self.selection_share(b, t, ids) if np.array_equal(tokens[: want.size], want) else np.inf

    def torch(self, rows: int | None, finish: Callable[[Any], Any]) -> Callable[[], Any]:
        """The scores as modelling code writes them, chunk by chunk. Pages are taken for contiguous keys."""
        torch = torch_module()
        s = self.shape
        q = as_torch(self.q)[:, : rows or s["Sq"]]
        keys = [as_torch(k).view(s["B"], -1, s["D"])[:, : s["N"]] for k in self.k]

        def score(part: Any, key: Any) -> Any:
            heads = torch.relu(part.flatten(1, 2) @ key).unflatten(1, (-1, s["Hi"]))
            return heads.sum(2, dtype=torch.float32) * self.scale

        turns = self.peer_turns()

        def run() -> Any:
            with torch.no_grad():
                key = keys[next(turns)].transpose(1, 2)
                return [finish(score(part, key)) for part in q.split(CHUNK_ROWS, dim=1)]

        return run


class _Index(Case):
    """Every row sees all keys, as the last rows of a long context nearly do."""

    bound = "compute"
    defaults = {
        "seq": None, "keys": None, "rows": None, "batch": 1, "heads_q": 4, "dim": 128, "block": 4,
        "page_size": None, "decode": False, "dtype": "bf16",
    }  # fmt: skip
    long: int  # tokens of context of a decoding row

    def __init__(
        self,
        seq: int | None,
        keys: int | None,
        rows: int | None,
        batch: int,
        heads_q: int,
        dim: int,
        block: int,
        page_size: int | None,
        decode: bool,
        dtype: str,
    ) -> None:
        seq = keys * block if keys else seq or (self.long if decode else 65536)
        if block > seq:
            raise ValueError(f"--block is {block}; expected up to --seq, {seq}")
        rows = rows or (1 if decode else 1536)
        self.dtype = dtype
        sizes = {"B": batch, "Sq": rows, "Sk": seq, "N": seq // block, "Hi": heads_q, "D": dim, "block": block}
        if decode:
            self.bound = "stream"
            page_size = page_size or 64
        self.index = Index(np.random.default_rng(0), sizes, dtype, np.full(rows, seq - 1), page_size, decode)
        self.shape = sizes | ({"page": page_size} if page_size else {})

    def samples(self) -> list[tuple[int, int]]:
        s = self.shape
        rows = samples(s["Sq"], 4, np.random.default_rng(1))
        return [(b, t) for b in sorted({0, s["B"] - 1}) for t in rows]

    def torch_peer(self, finish: Callable[[Any], Any]) -> Peer:
        rows = self.shape["Sq"]
        return Peer(lambda n: self.index.torch(n, finish), lambda n: n or rows, max(1, min(CHUNK_ROWS, rows // 2)))

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        return {"sets_of_keys": self.index.sets}


class QsaScore(_Index):
    name = "qsa-score"
    help = "scores of compressed keys; --decode: of one row"
    long = 1 << 22

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        s = self.shape
        self.gflop = self.index.gflop()
        self.gbytes = self.index.gbytes() + s["B"] * s["Sq"] * s["N"] * 4 / 1e9

    def run(self) -> Any:
        self.result = self.index.next_call(tessera.qsa_indexer_mqa_score)
        return self.result

    def peers(self) -> dict[str, Peer]:
        return {"torch_scores": self.torch_peer(lambda scores: scores)}

    def check(self) -> float:
        worst = 0.0
        for b, t in self.samples():
            value, magnitude = self.index.scores(b, t)
            worst = max(worst, share(self.result[b, t, : value.size], value, SCORE_BOUND * magnitude))
        return worst


class QsaSelect(_Index):
    """The share counts what the scores take, and nothing for the selection."""

    name = "qsa-select"
    help = "the blocks with the best scores, fused; --decode: of one row"
    defaults = _Index.defaults | {"topk": 512}
    long = 1 << 20

    def __init__(self, topk: int, **options: Any) -> None:
        super().__init__(**options)
        self.shape |= {"K": topk}
        self.gflop = self.index.gflop(topk)
        self.gbytes = self.index.gbytes() + self.shape["B"] * self.shape["Sq"] * topk * 4 / 1e9

    @property
    def budget(self) -> int:
        return self.shape["K"] * self.shape["block"]

    def run(self) -> Any:
        self.result = self.index.next_call(tessera.qsa_select, budget=self.budget)
        return self.result

    def peers(self) -> dict[str, Peer]:
        topk = min(self.shape["K"], self.shape["N"])
        # More rows of a request share what packing costs, and are not screened.
        few = {"tessera_int8_screen": Peer(lambda _: self.index.screened(self.budget), lambda _: 1.0)}
        return (few if self.shape["Sq"] <= 2 else {}) | {
            "tessera_bare_scores": Peer(lambda _: self.index.bare_scores(), lambda _: 1.0),
            "torch_dense_scores": self.torch_peer(lambda scores: scores.topk(topk, dim=2).indices),
        }

    def check(self) -> float:
        return max(self.index.selection_share(b, t, self.result[b, t]) for b, t in self.samples())
