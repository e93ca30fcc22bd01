"""qsa-compress: one key for each block of raw index keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
from tessera.bench.case import Case, Peer, giga_bytes, samples
from tessera.bench.peers import as_torch, torch_module
from tessera.check.data import normal
from tessera.check.qsa_keys import Inputs, Prompts, judge_keys, truth


def torch_rotation(positions: Any, half: int, dtype: Any) -> tuple[Any, Any]:
    """Tables of cos and sin [positions, half]."""
    torch = torch_module()
    angle = positions[:, None] * 1e7 ** (-torch.arange(half, dtype=torch.float64) / half)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def torch_keys(raw: Any, weight: Any, cos: Any, sin: Any) -> Any:
    """Keys [..., D] of blocks of raw keys [..., block, D]; weight: f32, with the 1 added."""
    torch, half = torch_module(), cos.shape[-1]
    mean = raw.float().mean(dim=-2).to(raw.dtype).float()
    key = (mean * torch.rsqrt(mean.pow(2).mean(-1, keepdim=True) + 1e-6) * weight).to(raw.dtype)
    x, y, rest = key[..., :half], key[..., half : 2 * half], key[..., 2 * half :]
    return torch.cat((x * cos - y * sin, y * cos + x * sin, rest), dim=-1)


class QsaCompress(Case):
    name = "qsa-compress"
    help = "compressed keys of whole prompts"
    bound = "stream"
    defaults = {"seq": 262144, "batch": 1, "dim": 128, "block": 4, "dtype": "bf16"}

    def __init__(self, seq: int, batch: int, dim: int, block: int, dtype: str) -> None:
        if block > seq:
            raise ValueError(f"--block is {block}; expected up to --seq, {seq}")
        self.dtype = dtype
        self.shape = {"B": batch, "S": seq, "D": dim, "block": block}
        rng = np.random.default_rng(0)
        self.raw = normal(rng, (batch, seq, dim), dtype)
        self.weight = normal(rng, (dim,), dtype)
        self.rule = {"block_size": block, "rotary_dim": dim // 4 * 2}
        self.out = np.zeros((batch, seq // block, dim), self.raw.dtype)
        self.gbytes = giga_bytes(self.raw, self.out)

    def run(self) -> Any:
        return tessera.qsa_compress_keys(self.raw, self.weight, out=self.out, **self.rule)

    def peers(self) -> dict[str, Peer]:
        s = self.shape
        return {"torch_modelling_code": Peer(self.modelling_code, lambda n: n or s["S"], max(s["block"], s["S"] // 8))}

    def modelling_code(self, tokens: int | None) -> Callable[[], Any]:
        """The steps one after the other, as modelling code writes them; its tables are made before."""
        torch = torch_module()
        block = self.shape["block"]
        blocks = (tokens or self.shape["S"]) // block
        raw, weight = as_torch(self.raw)[:, : blocks * block], 1 + as_torch(self.weight).float()
        cos, sin = torch_rotation(torch.arange(blocks) * block, self.rule["rotary_dim"] // 2, raw.dtype)

        def run() -> Any:
            with torch.no_grad():
                return torch_keys(raw.unflatten(1, (blocks, block)), weight, cos, sin)

        return run

    def check(self) -> float:
        s = self.shape
        shape = Prompts("", s["B"], s["block"], s["D"], s["block"], self.rule["rotary_dim"])
        worst = 0.0
        for g in samples(self.out.shape[1], 50, np.random.default_rng(1)):
            tokens = slice(g * s["block"], (g + 1) * s["block"])
            positions = np.broadcast_to(np.arange(tokens.start, tokens.stop, dtype=np.int32), (s["B"], s["block"]))
            inputs = Inputs(self.raw[:, tokens], self.weight, self.rule, positions, {})
            worst = max(worst, judge_keys(shape, self.dtype, self.out[:, g : g + 1], truth(shape, inputs)))
        return worst
