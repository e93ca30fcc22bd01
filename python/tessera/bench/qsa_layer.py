"""qsa-attention: selection and attention of a QSA layer together."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
from tessera.bench.case import AttentionCase, Peer, giga_bytes, model_shape, samples, workspace_mib
from tessera.bench.peers import sdpa_peer
from tessera.bench.qsa_attention import QSA, Cache, attention_share
from tessera.bench.qsa_index import Index
from tessera.check.data import normal

INDEX_HEADS, INDEX_DIM = 4, 128
SHORT = 65536  # tokens of the context that a longer one is held against
FITTED = 4096  # tokens of the dense peer where the whole would take too long


class QsaAttention(AttentionCase):
    """A whole prompt, or one row over a long context in pages.

    What a decoding row reads grows with its context by the index keys alone. `growth` in the output is its time over that
    at 65,536 tokens plus that of a bare read of the additional index keys, by the rate that the same run measured.
    """

    name = "qsa-attention"
    help = "selection and attention over what it selects; --decode: of one row"
    bound = "compute"
    defaults = QSA | {"seq": None, "page_size": None, "decode": False}

    def __init__(
        self, seq: int | None, rows: int | None, page_size: int | None, decode: bool, dtype: str, **sizes: Any
    ) -> None:
        self.given = {"rows": rows, "page_size": page_size, "decode": decode, "dtype": dtype, **sizes}
        self.dtype = dtype
        if decode:
            self.bound = "stream"
            seq, rows, page_size = seq or 1 << 20, rows or 1, page_size or 256
        s = model_shape(seq or 32768, rows, **sizes, block_q=1)
        if s["block"] > s["Sk"]:
            raise ValueError(f"--block is {s['block']}; expected up to --seq, {s['Sk']}")
        self.shape = s | {"Hi": INDEX_HEADS, "Di": INDEX_DIM} | ({"page": page_size} if page_size else {})
        rng = np.random.default_rng(0)
        self.positions = np.arange(s["Sk"] - s["Sq"], s["Sk"])
        self.q = normal(rng, (s["B"], s["Sq"], s["Hq"], s["D"]), dtype)
        self.cache = Cache(rng, s, dtype, page_size)
        # The dense peer takes the memory of pages for contiguous keys.
        self.k, self.v = (x.reshape(s["B"], -1, *x.shape[2:])[:, : s["Sk"]] for x in (self.cache.k, self.cache.v))
        keys = {"B": s["B"], "Sq": s["Sq"], "N": s["Sk"] // s["block"], "block": s["block"]}
        keys |= {"Hi": INDEX_HEADS, "D": INDEX_DIM}
        index_page = max(1, page_size // s["block"]) if page_size else None
        self.index = Index(rng, keys, dtype, self.positions, index_page, decode)
        self.out = np.zeros_like(self.q)
        self.options = {
            "query_positions": self.index.options["query_positions"],
            "out": self.out,
            **self.cache.options,
        }
        self._count()

    def _count(self) -> None:
        """Of keys and values the selected ones, as if the rows of a request had none in common, up to all that there are."""
        s = self.shape
        chosen = np.minimum(self.index.visible, s["K"]) * s["block"] + (self.positions + 1) % s["block"]
        self.gflop = self.index.gflop(s["K"]) + float(chosen.sum()) * s["B"] * s["Hq"] * 4 * s["D"] / 1e9
        tokens = min(int(chosen.sum()), s["Sk"]) * s["B"]
        token_bytes = 2 * s["Hkv"] * s["D"] * self.q.itemsize
        self.gbytes = self.index.gbytes() + tokens * token_bytes / 1e9 + giga_bytes(self.q, self.out)

    def run(self) -> Any:
        budget = self.shape["K"] * self.shape["block"]
        self.tokens = self.index.next_call(tessera.qsa_select_tokens, budget=budget)
        return tessera.qsa_sparse_attention(self.q, self.cache.k, self.cache.v, self.tokens, **self.options)

    def peers(self) -> dict[str, Peer]:
        if self.bound == "compute":
            return {"torch_sdpa_dense": sdpa_peer(self, FITTED, fitted=True)}
        if self.shape["Sk"] <= SHORT:
            return {}
        return {"tessera_short_context": Peer(lambda _: QsaAttention(seq=SHORT, **self.given).run, lambda _: 1.0)}

    def check(self) -> float:
        rows = samples(self.shape["B"] * self.shape["Sq"], 6, np.random.default_rng(1))
        return max(self._share(*divmod(row, self.shape["Sq"])) for row in rows)

    def _share(self, b: int, t: int) -> float:
        """The error of one row's selection, or of its attention over what was selected."""
        tokens = self.tokens[b, t]
        return max(self.index.tokens_share(b, t, tokens), attention_share(self, b, t, tokens))

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        text = tessera.explain(
            tessera.qsa_sparse_attention, self.q, self.cache.k, self.cache.v, self.tokens, **self.options
        )
        result = {"workspace_mib": workspace_mib(text)}
        short = line["peers"].get("tessera_short_context", {}).get("ms")
        if short is not None:
            s = self.shape
            more = s["B"] * (s["Sk"] - SHORT) // s["block"] * INDEX_DIM * self.q.itemsize / 1e9
            result["growth"] = round(line["ms"] / (short + more / line["ceiling"]["value"] * 1e3), 3)
        return result
