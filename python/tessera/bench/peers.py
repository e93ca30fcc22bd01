"""Other implementations on the same data. torch is needed for them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.bench.case import UnavailableError

if TYPE_CHECKING:
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


def _heads_first(case: MsaPrefill, tokens: int | None = None) -> list[Any]:
    """q, k, v as [B, H, S, D], contiguous: the layout that torch likes best; the copy is not timed."""
    return [as_torch(array[:, :tokens]).transpose(1, 2).contiguous() for array in (case.q, case.k, case.v)]


def sdpa_dense(case: MsaPrefill, tokens: int | None) -> Callable[[], Any]:
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
