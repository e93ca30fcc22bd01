"""What a benchmark case is, and the cases there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass
class Peer:
    """Another way to the same result.

    `make(tokens)` prepares it for the first `tokens` tokens (None: all) and returns the call to time; `UnavailableError`
    says why it cannot run. `probe` is a number of tokens whose time foretells that of the whole, which grows from
    `work(probe)` to `work(None)`. Without it `work(None)` is the work in units of the case's own. Where the whole would
    take too long, a peer that may be `fitted` is timed on the probe, and its time multiplied by that growth.
    """

    make: Callable[[int | None], Callable[[], Any]]
    work: Callable[[int | None], float]
    probe: int | None = None
    fitted: bool = False


class UnavailableError(Exception):
    """Why a peer does not run here."""


class Case:
    """One call, ready to be timed. A case takes the options named in `defaults` and no other."""

    name: ClassVar[str]
    help: ClassVar[str]
    defaults: ClassVar[dict[str, Any]]
    bound: ClassVar[str]  # "compute", "stream", "gather" or "": which ceiling the case is measured against

    shape: dict[str, float]
    dtype: str
    gflop: float | None = None  # that the mathematics needs; no credit for masked work
    gbytes: float | None = None  # of inputs that must be read and outputs that must be written, once each

    def __init__(self, **options: Any) -> None:
        """Makes the inputs. ValueError: a combination of options that the case cannot take."""
        raise NotImplementedError

    def run(self) -> Any:
        raise NotImplementedError

    def pieces(self) -> tuple[np.ndarray, int]:
        """Of a case bound by a gather: the addresses (uint64) of the pieces that it reads, and the bytes of one."""
        raise NotImplementedError

    def peers(self) -> dict[str, Peer]:
        return {}

    def check(self) -> float:
        """The worst error of run()'s last result, on sampled rows, as a share of its bound."""
        raise NotImplementedError

    def extra(self, line: dict[str, Any]) -> dict[str, Any]:
        """More to report, beside what `line` says."""
        return {}


class AttentionCase(Case):
    """A case over contiguous keys."""

    q: np.ndarray  # [B, Sq, Hq, D]
    k: np.ndarray  # [B, Sk, Hkv, D]
    v: np.ndarray


MODEL = {"seq": 8192, "rows": None, "batch": 1, "heads_q": 64, "heads_kv": 4, "dim": 128, "block": 128}
MODEL |= {"block_q": None, "topk": 16, "dtype": "bf16"}


def model_shape(
    seq: int,
    rows: int | None,
    batch: int,
    heads_q: int,
    heads_kv: int,
    dim: int,
    block: int,
    topk: int,
    block_q: int | None = None,
) -> dict[str, int]:
    """The shape that the options in `MODEL` stand for."""
    rows, block_q = rows or seq, block_q or block
    if rows > seq:
        raise ValueError(f"--rows is {rows}; expected up to --seq, {seq}")
    if heads_q % heads_kv:
        raise ValueError(f"--heads-q is {heads_q}; expected multiples of --heads-kv, {heads_kv}")
    sizes = {"B": batch, "Sq": rows, "Sk": seq, "Hq": heads_q, "Hkv": heads_kv, "D": dim, "block": block}
    return sizes | {"block_q": block_q, "K": topk}


def giga_bytes(*arrays: np.ndarray) -> float:
    return sum(array.nbytes for array in arrays) / 1e9


def samples(total: int, count: int, rng: np.random.Generator) -> list[int]:
    """The first and last of range(total) and others between, ascending."""
    return sorted({0, total - 1, *rng.integers(0, total, count - 2).tolist()})


def workspace_mib(explained: str) -> float:
    """Out of what `tessera.explain` says."""
    return round(int(re.search(r"workspace: (\d+) bytes", explained)[1]) / 2**20, 2)


def all_cases() -> dict[str, type[Case]]:
    from tessera.bench.decode import MsaDecode
    from tessera.bench.dist_model import DistModel
    from tessera.bench.index import MsaSelect
    from tessera.bench.merge import Merge
    from tessera.bench.overhead import CallOverhead, DecodeOverhead
    from tessera.bench.prefill import MsaPrefill
    from tessera.bench.qsa_attention import QsaDecode, QsaPrefill
    from tessera.bench.qsa_index import QsaScore, QsaSelect
    from tessera.bench.qsa_indexer import QsaIndexer
    from tessera.bench.qsa_keys import QsaCompress
    from tessera.bench.qsa_layer import QsaAttention
    from tessera.bench.select import MassSelect, MobaSelect
    from tessera.bench.token_prefill import MsaPrefillToken
    from tessera.bench.topk import TopkBlocks

    msa = MsaPrefill, MsaPrefillToken, MsaDecode, MsaSelect, MassSelect, MobaSelect
    qsa = QsaCompress, QsaScore, QsaSelect, TopkBlocks, QsaIndexer, QsaPrefill, QsaDecode, QsaAttention
    return {case.name: case for case in (*msa, *qsa, Merge, CallOverhead, DecodeOverhead, DistModel)}
