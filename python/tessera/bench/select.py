"""mass-select and moba-select: choosing blocks for a whole prompt."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import tessera
from tessera.bench.case import MODEL, Case, giga_bytes, model_shape, samples
from tessera.check.data import normal
from tessera.check.selection import selection_share


class _Select(Case):
    operator: ClassVar[str]
    fixed: ClassVar[dict[str, Any]]  # options of the operator that the command does not have

    def __init__(self, dtype: str, **sizes: Any) -> None:
        self.dtype = dtype
        self.shape = s = model_shape(**sizes)
        rng = np.random.default_rng(0)
        self.q = normal(rng, (s["B"], s["Sq"], s["Hq"], s["D"]), dtype)
        self.k = normal(rng, (s["B"], s["Sk"], s["Hkv"], s["D"]), dtype)
        self.options = {"topk": s["K"], "block_size": s["block"], "block_q": s["block_q"], **self.fixed}
        lists = s["B"] * s["Hkv"] * -(-s["Sq"] // s["block_q"])
        self.gbytes = giga_bytes(self.q, self.k) + lists * s["K"] * 4 / 1e9
        self.gflop = self.work() / 1e9

    def work(self) -> float:
        raise NotImplementedError

    def run(self) -> Any:
        self.result = getattr(tessera, self.operator)(self.q, self.k, **self.options)
        return self.result

    def check(self) -> float:
        s = self.shape
        offset, worst = s["Sk"] - s["Sq"], 0.0
        for n in samples(self.result.shape[2], 4, np.random.default_rng(1)):
            first = n * s["block_q"]
            q = self.q[:1, first : first + s["block_q"]]
            want = getattr(tessera, self.operator)(
                q, self.k[:1], q_offset=first + offset, backend="reference", **self.options
            )
            got = self.result[:1, :, n : n + 1]
            position = np.array([first + offset])
            worst = max(worst, selection_share(self.operator, got, want, q, self.k[:1], position, **self.options))
        return worst


class MassSelect(_Select):
    name = "mass-select"
    help = "blocks by the attention mass of sampled rows"
    operator = "mass_select"
    bound = "compute"
    defaults = MODEL | {"block": 64}
    fixed = {"stride": 8, "softmax_scale": None, "local_blocks": 1, "init_blocks": 1}

    def work(self) -> float:
        """2 D per sampled row, head and visible key."""
        s = self.shape
        t = np.arange(s["Sq"])
        last_of_block = ((t + 1) % s["block_q"] == 0) | (t == s["Sq"] - 1)
        sampled = t[(t % s["block_q"] % self.fixed["stride"] == 0) | last_of_block]
        return float((sampled + s["Sk"] - s["Sq"] + 1).sum()) * s["B"] * s["Hq"] * 2 * s["D"]


class MobaSelect(_Select):
    name = "moba-select"
    help = "blocks by their mean keys"
    operator = "moba_select"
    bound = "stream"
    defaults = MODEL
    fixed = {"local_blocks": 1, "init_blocks": 1}

    def work(self) -> float:
        """The two means, and 2 D per query block, KV head and visible block."""
        s = self.shape
        last = np.minimum(np.arange(0, s["Sq"], s["block_q"]) + s["block_q"], s["Sq"]) - 1 + s["Sk"] - s["Sq"]
        scores = float((last // s["block"] + 1).sum()) * s["Hkv"] * 2
        return s["B"] * s["D"] * (scores + s["Sq"] * s["Hq"] + s["Sk"] * s["Hkv"])
