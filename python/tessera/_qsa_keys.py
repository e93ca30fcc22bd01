"""What QSA's indexer is fed and what comes out of it: compressed keys of blocks, and the tokens of selected blocks.

Letters: B requests, S tokens of a request, D features of an index key, bs tokens per block (`block_size`), N blocks,
P pages of ps keys, K selected blocks.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def qsa_compress_keys(
    raw_keys: Array,
    norm_weight: Any,
    *,
    positions: Any = None,
    cos: Any = None,
    sin: Any = None,
    block_size: int = 4,
    eps: float = 1e-6,
    rotary_dim: int = 64,
    rope_theta: float = 1e7,
    round_intermediates: bool = False,
    out: Array | None = None,
    backend: str = "native",
) -> Array:
    """One key for each whole block of raw index keys.

    The mean of the block's raw keys, rounded to their dtype; RMSNorm, x * rsqrt(mean(x**2) + eps) * (1 + norm_weight); RoPE
    of the first rotary_dim features, i with i + rotary_dim // 2, at the position of the block's first token: pair i turns
    by position * rope_theta ** (-2 * i / rotary_dim). All of it in f32, and rounded once more at the end. Angles are
    right to f32 at any position.

    Block g has tokens [g * bs, (g + 1) * bs) in the order of the tokens, whatever their positions; tokens after the last
    whole block are not read. Left padding: a view that begins with the first token. Requests of different lengths: blocks
    past a request's end hold what its padding gives. `qsa_append_keys` gives the same bits from tokens as they come.

    Args:
        raw_keys: [B, S, D], bf16, f16 or f32, D up to 4096; not changed. Any strides with a unit stride along D.
        norm_weight: [D], raw_keys' dtype or f32.
        positions: int32 [B, S], of tokens, of which those of first tokens are read; None: 0, 1, ...
        cos, sin: f32 [B, S // bs, rotary_dim // 2], of the blocks, in place of positions and rope_theta: for M-RoPE and
            scaled RoPE. Of a model's tables for tokens [B, S, rotary_dim], cos[:, : S // bs * bs : bs, : rotary_dim // 2].
        block_size: bs.
        eps: at least 0.
        rotary_dim: even, at most D; 0: no RoPE.
        rope_theta: above 0.
        round_intermediates: whether the result of the norm, cos and sin, and every product and sum of RoPE are rounded to
            the dtype as well, as the public Qwen4-Exp modelling code does in bf16.
        out: [B, S // bs, D], raw_keys' dtype, to be written in place of a new tensor; any strides with a unit stride along
            D, but no overlap.
        backend: "native", or "reference" (plain double precision, one thread, slow).

    Returns:
        [B, S // bs, D] of raw_keys' kind and dtype; `out` if it is given.

    Raises:
        ValueError: shape, stride, overlap, device or option; TypeError: dtype or type of an argument;
        NotImplementedError: valid, but not supported. Nothing has been written then.

    Source: the indexer of Qwen4-Exp (Qwen Sparse Attention): one index key head of 128, blocks of 4 tokens.
    """
    return _core.qsa_compress_keys(
        raw_keys, norm_weight, positions, cos, sin, block_size, eps, rotary_dim, rope_theta, round_intermediates, out, backend
    )  # fmt: skip


def qsa_append_keys(
    raw_keys: Any,
    seq_lens: Any,
    norm_weight: Any,
    ring: Any,
    cache: Any,
    *,
    cu_seqlens_q: Any = None,
    ring_slots: Any = None,
    page_table: Any = None,
    block_positions: Any = None,
    cos: Any = None,
    sin: Any = None,
    block_size: int = 4,
    eps: float = 1e-6,
    rotary_dim: int = 64,
    rope_theta: float = 1e7,
    round_intermediates: bool = False,
    backend: str = "native",
) -> None:
    """Takes the raw index keys of new tokens and writes the key of every block that they complete to a cache, in place.

    Row i of a request is its token seq_lens[b] + i. Keys have the bits that `qsa_compress_keys` gives for all the tokens at
    once, however they are grouped into calls: prompts whole or in chunks, single tokens, any mix of these in one call. The
    key of block g goes to row g % ps of page page_table[b, g // ps], without page_table to cache[b, g]. What the cache
    has no place for (behind a page outside [0, P), past its end) is skipped; nothing else in it is written.

    Token t is also kept in row t % capacity of the request's slot of `ring`, where later calls find it to complete its
    block; of a call longer than the ring the last tokens. To take tokens back (rejected drafts), begin the next call
    before them: seq_lens says where, and new rows replace them. capacity >= bs - 1 + r allows for up to r tokens before the
    end of all that was written: r = num_spec for num_spec drafts behind a token that is always accepted. A request that
    begins with a cached prefix needs its last len % bs tokens in the ring: append those again.

    Requests may not share places of ring and cache that they write. Results do not depend on the other requests nor on the
    number of threads.

    Args:
        raw_keys: of the new tokens, [B, n, D], or packed [total, D] with cu_seqlens_q; bf16, f16 or f32, D up to 4096.
            Any strides with a unit stride along D.
        seq_lens: int32 [B], tokens of each request before this call; below 0 is 0.
        norm_weight: [D], raw_keys' dtype or f32.
        ring: [slots, capacity, D], raw_keys' dtype, with capacity >= bs - 1; belongs to the caller, between calls too. Any
            strides without overlap, with a unit stride along D; likewise cache.
        cache: [B, N, D]; with page_table pages of any size, [P, ps, D] or [P, ps, 1, D]; raw_keys' dtype.
        cu_seqlens_q: int32 [B + 1], for packed rows: rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) are request b's. A
            request whose rows would lie outside raw_keys or overlap an earlier one's is empty.
        ring_slots: int32 [B], the slot of each request; None: b. A request without one (-1) keeps nothing, and a block of
            its that began before the call is skipped.
        page_table: int32 [B, max_pages].
        block_positions: int32 [B, M], position of the first token of blocks seq_lens[b] // bs, seq_lens[b] // bs + 1, ...
            of each request; None: the token's index. Blocks past M are skipped.
        cos, sin: f32 [B, M, rotary_dim // 2] of the same blocks, in place of block_positions and rope_theta.
        block_size, eps, rotary_dim, rope_theta, round_intermediates, backend: as in `qsa_compress_keys`.

    Returns:
        None: ring and cache are changed.

    Raises: as `qsa_compress_keys`.

    Source: the caches of the public Qwen4-Exp servings: a ring of raw keys per request, a page table shared with KV.
    """
    _core.qsa_append_keys(
        raw_keys, seq_lens, norm_weight, ring, cache, cu_seqlens_q, ring_slots, page_table, block_positions, cos, sin,
        block_size, eps, rotary_dim, rope_theta, round_intermediates, backend,
    )  # fmt: skip


def qsa_screen_keys(
    keys: Array, *, out: tuple[Array, Array] | None = None, backend: str = "native"
) -> tuple[Array, Array]:
    """Copies of compressed keys in 8 bits, by which `qsa_select` passes over keys that it need not read.

    Of each key scale = max |k| / 127 and code = round(k / scale), either neighbour where that is halfway. A key with NaN or
    Inf, or with a scale outside [2^-40, 2^40], has scale NaN and is always scored; one of zeros has scale 0.

    Args:
        keys: [..., D], up to five axes, bf16, f16 or f32, D of stride 1: of a cache, the rows that are new will do.
        out: (codes, scales) to write instead of new ones, any strides but 1 along D: the same rows of their caches.
        backend: "native" or "reference".

    Returns:
        (codes, scales): int8 [..., D] and f32 [...] of keys' kind, or out.

    Raises:
        ValueError: shape, layout, device or overlap; TypeError: dtype or type of an argument.

    Source: the copies and the proof that they lose no key are this library's own.
    """
    return _core.qsa_screen_keys(keys, out, backend)


def qsa_expand_blocks(
    block_ids: Array, query_positions: Any, *, block_size: int = 4, out: Any = None, backend: str = "native"
) -> Array:
    """The tokens of selected blocks: what sparse attention over tokens takes.

    Each block becomes its tokens up to the row's position, ascending, blocks in the order given and packed to the front.
    Directly after them come the 0 to bs - 1 tokens of the incomplete block that the position lies in, up to the position,
    unless an id has named that block already; then -1. An id that is negative or begins after the position gives nothing,
    nor does anything of a row with a negative position.

    Args:
        block_ids: int32 [..., K], up to five axes; any strides.
        query_positions: int32 [...], the axes of block_ids without its last (none for a single list); any strides.
        block_size: bs.
        out: int32 [..., K * bs + bs - 1] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        int32 [..., K * bs + bs - 1] of block_ids' kind: 2051 for 512 blocks of 4.

    Raises:
        ValueError: shape, device or option; TypeError: dtype or type of an argument.

    Source: the token lists of Qwen4-Exp (Qwen Sparse Attention).
    """
    return _core.qsa_expand_blocks(block_ids, query_positions, block_size, out, backend)
