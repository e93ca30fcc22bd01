"""dist-model: what several ranks would take, from what one takes here, and a network's bandwidth and latency."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import MODEL, Peer
from tessera.bench.prefill import MsaPrefill
from tessera.check.data import normal

RANKS = (1, 2, 4, 8, 64, 256, 1024)
TOKENS = tuple(2**n for n in range(16, 25, 2))  # 64 K to 16 M
EXCHANGE_BYTES = 64 << 20  # context-parallel: of partial results before they are sent
PACK_ROWS = 16  # packing keys for a call costs as much as multiplying them with so many rows
MIB = 2**20


@dataclass
class Model:
    """Of a prefill of whole prompts: every token is a row and a key."""

    row: float  # seconds of a row
    empty: float  # of them what a row takes whose list is empty
    merged: float  # seconds to merge a row of one partial result
    key: float  # seconds to pack a key of all KV heads
    out_bytes: int  # of a row
    lse_bytes: int
    kv_bytes: int  # of a key and its value, all KV heads
    packed_bytes: int  # likewise, of the copies that a call makes
    bandwidth: float  # bytes a second that a rank sends, and receives meanwhile
    latency: float  # seconds of a message; those of one exchange follow each other

    def q_parallel(self, tokens: int, ranks: int) -> tuple[float, float]:
        """(seconds, bytes of a rank)."""
        others = (ranks - 1) / ranks
        compute = tokens * self.row / ranks + tokens * self.key
        gather = tokens * self.out_bytes * others / self.bandwidth + 3 * (ranks - 1) * self.latency
        return compute + gather, tokens * (self.kv_bytes + self.packed_bytes)

    def context_parallel(self, tokens: int, ranks: int) -> tuple[float, float]:
        others = (ranks - 1) / ranks
        partial = self.out_bytes + self.lse_bytes
        pieces = -(-tokens * partial // EXCHANGE_BYTES)
        compute = tokens * ((self.row - self.empty) / ranks + self.empty) + pieces * tokens / ranks * self.key
        exchange = (
            tokens * (partial + self.out_bytes) * others / self.bandwidth + 3 * pieces * (ranks - 1) * self.latency
        )
        merge = tokens * self.merged if ranks > 1 else 0.0
        memory = tokens * (self.kv_bytes + self.packed_bytes) / ranks + 4 * min(EXCHANGE_BYTES, tokens * partial)
        return compute + exchange + merge, memory

    def table(self, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
        rows = []
        for n in tokens:
            for ranks in RANKS:
                line: dict[str, Any] = {"tokens": n, "ranks": ranks}
                for way in ("q_parallel", "context_parallel"):
                    seconds, memory = getattr(self, way)(n, ranks)
                    line[way] = {
                        "seconds": seconds,
                        "efficiency": self.q_parallel(n, 1)[0] / seconds / ranks,
                        "mib": memory / MIB,
                    }
                rows.append(line)
        return rows


class DistModel(MsaPrefill):
    name = "dist-model"
    help = "msa-prefill by one rank, and what 1 to 1,024 would take, up to 16 M tokens"
    defaults = MODEL | {"rows": 1024, "bandwidth": 10.0, "latency": 5.0}

    def __init__(self, bandwidth: float, latency: float, dtype: str, **sizes: Any) -> None:
        super().__init__(dtype, **sizes)
        self.bandwidth, self.latency = bandwidth * 1e9, latency * 1e-6

    def peers(self) -> dict[str, Peer]:
        return {}

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        s = self.shape
        rows = s["B"] * s["Sq"]
        empty = _seconds(lambda: tessera.block_sparse_gqa_prefill(
            self.q, self.k, self.v, np.full_like(self.lists, -1), out=self.out, **self.options))  # fmt: skip
        lse = normal(np.random.default_rng(2), self.q.shape[:-1], "f32")
        partials = [(self.q, lse), (self.out, lse)]
        merged = _seconds(lambda: tessera.merge_states(partials))
        seconds = line["ms"] / 1e3
        pairs = self.gflop * 1e9 / (4 * s["D"])
        key = seconds / pairs * PACK_ROWS * s["Hkv"]
        model = Model(
            row=max(seconds - s["Sk"] * s["B"] * key, 0) / rows,
            empty=empty / rows,
            merged=merged / rows / 2,
            key=key,
            out_bytes=s["Hq"] * s["D"] * self.q.itemsize,
            lse_bytes=s["Hq"] * 4,
            kv_bytes=2 * s["Hkv"] * s["D"] * self.k.itemsize,
            packed_bytes=2 * s["Hkv"] * s["D"] * 4,
            bandwidth=self.bandwidth,
            latency=self.latency,
        )
        return super().extra(line) | {"model": model.table((s["Sk"], *TOKENS))}


def _seconds(call: Callable[[], Any]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def describe(table: list[dict[str, Any]]) -> list[str]:
    """The model's table for people; nothing if there is none."""
    if not table:
        return []
    lines = [f"  {'tokens':>9} {'ranks':>5}  {'query-parallel':>27}  {'context-parallel':>27}"]
    for row in table:
        ways = (row["q_parallel"], row["context_parallel"])
        texts = [f"{w['seconds']:9.4g} s {w['efficiency']:6.1%} {w['mib']:5.0f} MiB" for w in ways]
        lines.append(f"  {row['tokens']:>9} {row['ranks']:>5}  " + "  ".join(f"{text:>27}" for text in texts))
    return lines
