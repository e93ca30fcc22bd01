"""call-overhead and call-overhead-decode: what a call costs when there is next to nothing to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer
from tessera.bench.peers import as_torch, sdpa_single, torch_module
from tessera.bench.rows import row_share
from tessera.check.bounds import AttentionTruth
from tessera.check.data import normal


def _torch_ops() -> Any:
    torch_module()
    from tessera.torch import ops

    return ops


class CallOverhead(Case):
    name = "call-overhead"
    help = "one query, one head, 16 keys"
    bound = ""
    defaults = {"dtype": "bf16"}

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.shape = {"B": 1, "Sq": 1, "Sk": 16, "Hq": 1, "Hkv": 1, "D": 16, "block": 16, "block_q": 1, "K": 1}
        rng = np.random.default_rng(0)
        self.q = normal(rng, (1, 1, 1, 16), dtype)
        self.k = normal(rng, (1, 16, 1, 16), dtype)
        self.v = normal(rng, (1, 16, 1, 16), dtype)
        self.lists = np.zeros((1, 1, 1), np.int32)
        self.out = np.zeros_like(self.q)

    def run(self) -> Any:
        return tessera.block_sparse_gqa_prefill(
            self.q, self.k, self.v, self.lists, block_size=16, block_q=1, out=self.out
        )

    def peers(self) -> dict[str, Peer]:
        return {"torch_sdpa_dense": Peer(lambda _: sdpa_single(self.q, self.k, self.v), lambda _: 1.0)}

    def check(self) -> float:
        truth = AttentionTruth(self.q, self.k, self.v, self.lists, block_size=16, block_q=1)
        return truth.out_share(self.out, self.dtype)


class DecodeOverhead(Case):
    name = "call-overhead-decode"
    help = "one row, one head, one block of 16 keys in a page"
    bound = ""
    defaults = {"dtype": "bf16"}

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.shape = {
            "B": 1,
            "Sq": 1,
            "Sk": 16,
            "Hq": 1,
            "Hkv": 1,
            "D": 16,
            "block": 16,
            "block_q": 1,
            "K": 1,
            "page": 16,
        }
        rng = np.random.default_rng(0)
        self.q = normal(rng, (1, 1, 16), dtype)
        self.k, self.v = (normal(rng, (1, 1, 16, 16), dtype) for _ in range(2))
        self.out = np.zeros_like(self.q)
        self.inputs = self.q, self.k, self.v, np.zeros((1, 1, 1), np.int32)
        tables = {"page_table": np.zeros((1, 1), np.int32), "seqused_k": np.array([16], np.int32)}
        self.options: dict[str, Any] = {**tables, "block_size": 16, "out": self.out}

    def run(self) -> Any:
        return tessera.msa_sparse_decode_attention(*self.inputs, **self.options)

    def peers(self) -> dict[str, Peer]:
        q, k, v = self.q[None], *(x.swapaxes(1, 2) for x in (self.k, self.v))
        calls = {
            "torch_sdpa_dense": lambda _: sdpa_single(q, k, v),
            "torch_function": lambda _: self._with_torch(tessera.msa_sparse_decode_attention),
            "torch_op": lambda _: self._with_torch(_torch_ops().msa_sparse_decode_attention_out),
        }
        return {name: Peer(call, lambda _: 1.0) for name, call in calls.items()}

    def _with_torch(self, function: Callable[..., Any]) -> Callable[[], Any]:
        """The case's own call on torch tensors that share its memory."""
        inputs = [as_torch(array) for array in self.inputs]
        options = {name: as_torch(x) if isinstance(x, np.ndarray) else x for name, x in self.options.items()}
        return lambda: function(*inputs, **options)

    def check(self) -> float:
        return row_share(self.out[0], self.q[0], self.k[0, 0], self.v[0, 0], self.dtype)
