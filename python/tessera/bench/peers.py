"""Other implementations on the same data. torch is needed for them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import tessera
from tessera.bench.case import AttentionCase, Peer, UnavailableError

if TYPE_CHECKING:
    from tessera.bench.decode import MsaDecode
    from tessera.bench.prefill import MsaPrefill


def torch_module() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"torch: {error}") from error
    return torch


def as_torch(array: np.ndarray) -> Any:
    """Shares memory. NumPy's bfloat16 is unknown to torch.from_numpy."""
    torch = torch_module()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _heads_first(case: AttentionCase, tokens: int | None = None) -> list[Any]:
    """q, k, v as [B, H, S, D], contiguous: the layout that torch likes best; the copy is not timed."""
    return [as_torch(array[:, :tokens]).transpose(1, 2).contiguous() for array in (case.q, case.k, case.v)]


def _dense_pairs(shape: dict[str, Any], tokens: int | None) -> float:
    """(row, visible key) pairs of one head of a dense pass over the first `tokens` tokens, or over all."""
    rows = tokens or shape["Sq"]
    before = 0 if tokens else shape["Sk"] - rows
    return shape["B"] * (rows * before + rows * (rows + 1) / 2)


def dense_peers(case: AttentionCase, pairs: float) -> dict[str, Peer]:
    """Dense attention of the same queries; the case's lists select `pairs` (row, visible key) pairs of one head."""

    return {
        "torch_sdpa_dense": sdpa_peer(case, 1024),
        "tessera_dense": Peer(lambda _: _tessera_dense(case), lambda _: _dense_pairs(case.shape, None) / pairs),
    }


def sdpa_peer(case: AttentionCase, probe: int, fitted: bool = False) -> Peer:
    """Dense scaled_dot_product_attention of the whole context, whose time grows with its square."""
    return Peer(
        lambda tokens: _sdpa_dense(case, tokens),
        lambda tokens: _dense_pairs(case.shape, tokens),
        max(1, min(probe, case.shape["Sq"] // 2)),
        fitted,
    )


def _tessera_dense(case: AttentionCase) -> Callable[[], Any]:
    """Every block in every list, a list per block of queries."""
    s = case.shape
    every = np.arange(-(-s["Sk"] // s["block"]), dtype=np.int32)
    lists = np.broadcast_to(every, (s["B"], -(-s["Sq"] // s["block"]), every.size))
    out = np.zeros_like(case.q)
    return lambda: tessera.block_sparse_gqa_prefill(case.q, case.k, case.v, lists, block_size=s["block"], out=out)


def _sdpa_dense(case: AttentionCase, tokens: int | None) -> Callable[[], Any]:
    """Dense causal scaled_dot_product_attention, of the first `tokens` tokens alone or of the whole."""
    torch = torch_module()
    s = case.shape
    if s["Sq"] != s["Sk"]:
        raise UnavailableError("its causal mask is aligned to the first key where there are fewer queries than keys")
    q, k, v = _heads_first(case, tokens)
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        with torch.no_grad():
            return attend(q, k, v, is_causal=True, enable_gqa=True)

    return run


def flex_block_mask(case: MsaPrefill) -> Callable[[], Any]:
    """Compiled flex_attention with a BlockMask of the same lists; blocks that a mask cuts are the partial ones."""
    torch = torch_module()
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = _heads_first(case)
    mask = _block_mask(case)
    compiled = torch.compile(flex_attention, dynamic=False)

    def run() -> Any:
        with torch.no_grad():
            return compiled(q, k, v, block_mask=mask, enable_gqa=True)

    try:
        run()
    except Exception as error:
        raise UnavailableError(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}") from error
    return run


def _block_mask(case: MsaPrefill) -> Any:
    torch = torch_module()
    from torch.nn.attention.flex_attention import BlockMask

    s = case.shape
    offset = s["Sk"] - s["Sq"]
    blocks = -(-s["Sk"] // s["block"])
    first = (np.arange(case.lists.shape[1]) * s["block_q"] + offset)[None, :, None]
    full = (case.lists >= 0) & ((case.lists + 1) * s["block"] <= first + 1)

    def side(chosen: np.ndarray) -> tuple[Any, Any]:
        """Numbers of chosen blocks [B, 1, nQ], and their ids first in [B, 1, nQ, N]."""
        ids = np.zeros((*case.lists.shape[:2], blocks), np.int32)
        counts = chosen.sum(axis=-1).astype(np.int32)
        for b, n in np.ndindex(counts.shape):
            ids[b, n, : counts[b, n]] = np.sort(case.lists[b, n][chosen[b, n]])
        return torch.from_numpy(counts)[:, None], torch.from_numpy(ids)[:, None]

    def causal(b: Any, h: Any, q_index: Any, kv_index: Any) -> Any:
        return kv_index <= q_index + offset

    return BlockMask.from_kv_blocks(
        *side((case.lists >= 0) & ~full), *side(full),
        BLOCK_SIZE=(s["block_q"], s["block"]), mask_mod=causal, seq_lengths=(s["Sq"], s["Sk"]),
    )  # fmt: skip


def sdpa_single(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Callable[[], Any]:
    """The call of scaled_dot_product_attention with the same tensors."""
    torch = torch_module()
    q, k, v = (as_torch(array).transpose(1, 2) for array in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, enable_gqa=True)


def torch_merge(partials: list[tuple[np.ndarray, np.ndarray]]) -> Callable[[], Any]:
    """The merge written in torch: stack, logsumexp, weighted sum in f32."""
    torch = torch_module()
    outs, lses = [as_torch(out) for out, _ in partials], [as_torch(lse) for _, lse in partials]

    def run() -> Any:
        lse = torch.stack(lses).logsumexp(0)
        merged = torch.zeros(outs[0].shape, dtype=torch.float32)
        for out, one in zip(outs, lses, strict=True):
            merged += torch.exp(one - lse)[..., None] * out
        return merged.to(outs[0].dtype), lse

    return run


def decode_peers(case: MsaDecode) -> dict[str, Peer]:
    """The same gather and attention in torch; and dense attention over the whole context."""
    s = case.shape
    dense = s["Sk"] * s["B"] * s["Sq"] * s["Hkv"] / case.pairs
    return {
        "torch_gather_sdpa": Peer(lambda _: _gather_sdpa(case), lambda _: 1.0),
        "torch_sdpa_dense": Peer(
            lambda tokens: _decode_dense(case, tokens), lambda tokens: float(tokens or s["Sk"]), max(1, s["Sk"] // 16)
        ),
        "tessera_dense": Peer(lambda _: _tessera_decode_dense(case), lambda _: dense),
    }


def _decode_queries(case: MsaDecode) -> Any:
    """[rows, Hkv, G, D]: to torch the heads of a group are queries that share their keys, many times faster than enable_gqa."""
    s = case.shape
    return as_torch(case.q.reshape(-1, s["Hkv"], s["Hq"] // s["Hkv"], s["D"]))


def _gather_sdpa(case: MsaDecode) -> Callable[[], Any]:
    """index_select of the listed keys and values, then scaled_dot_product_attention with a mask of the visible ones."""
    torch = torch_module()
    s = case.shape
    index, seen = case.selected(case.lists[0])
    rows, _, keys = seen.shape
    q = _decode_queries(case)
    k, v = (as_torch(pages.reshape(-1, case.piece_keys * s["D"])) for pages in (case.k, case.v))
    chosen = torch.from_numpy(index.reshape(-1))
    mask = None if seen.all() else torch.from_numpy(seen)[:, :, None]
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        with torch.no_grad():
            picked = [torch.index_select(x, 0, chosen).view(rows, s["Hkv"], keys, s["D"]) for x in (k, v)]
            return attend(q, *picked, attn_mask=mask)

    return run


def _decode_dense(case: MsaDecode, tokens: int | None) -> Callable[[], Any]:
    """All keys of the context, without a page table: the memory of the pages is taken for contiguous keys."""
    torch = torch_module()
    s = case.shape
    if s["Sq"] != 1:
        raise UnavailableError("its causal mask is aligned to the first key where there are fewer queries than keys")
    q = _decode_queries(case)
    k, v = (as_torch(x.reshape(s["B"], s["Hkv"], -1, s["D"]))[:, :, : tokens or s["Sk"]] for x in (case.k, case.v))
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        with torch.no_grad():
            return attend(q, k, v)

    return run


def _tessera_decode_dense(case: MsaDecode) -> Callable[[], Any]:
    s = case.shape
    every = np.arange(-(-s["Sk"] // s["block"]), dtype=np.int32)
    lists = np.broadcast_to(every, (s["Hkv"], case.q.shape[0], every.size))
    out = np.zeros_like(case.out)
    return lambda: tessera.msa_sparse_decode_attention(case.q, case.k, case.v, lists, **case.options | {"out": out})
