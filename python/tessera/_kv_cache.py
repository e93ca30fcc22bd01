"""Writing the paged KV cache, row-major or in the packed layout.

Letters as in `_ops`; n rows, P pages, ps tokens per page. In the packed layout a page lies as kernels multiply it: the slots
of k side by side, those of v in pairs. With e elements to 4 bytes, 2 of bf16 or f16 and 1 of f32:

    k_cache [P, Hkv, ceil(D/e), ps, e]    feature d of the key in slot j is k_cache[page, head, d // e, j, d % e]
    v_cache [P, Hkv, ceil(ps/e), Dv, e]   feature d of the value in slot j is v_cache[page, head, j // e, d, j % e]

Attention over paged keys takes such a pair in the place of k [P, Hkv, ps, D] and v [P, Hkv, ps, Dv], with the same page
table, and gives the same bits; `msa_block_scores` and `msa_select` likewise take such a k_cache of index keys.
`qsa_sparse_attention` reads runs of 4 tokens, and so wants pages of 4: page p of a table of pages of ps tokens is then pages
[p * ps/4, (p + 1) * ps/4) of the caches, which changes no slot's number.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def append_kv(k: Any, v: Any | None, slots: Any, k_cache: Any, v_cache: Any = None, *, backend: str = "native") -> None:
    """Copies rows of k and v into slots of a paged cache, in place: row i to slot slots[i] % ps of page slots[i] // ps.

    A slot outside [0, P * ps) is skipped (-1 is the usual filler); of rows that name one slot the last one stays. Only the
    named slots are written. Values are moved, not converted, and do not depend on the number of threads.

    Args:
        k: [n, Hkv, D], bf16, f16 or f32. Any strides with a unit stride along D; likewise v.
        v: [n, Hkv, Dv], k's dtype. None, with v_cache: keys alone are written, as an index cache has no values.
        slots: int32 [n], page * ps + slot of the page: what engines call a slot mapping.
        k_cache: row-major [P, Hkv, ps, D] with a unit stride along D, or packed [P, Hkv, ceil(D/e), ps, e], dense in its
            last two axes; k's dtype. Other strides are free, but no two elements may share memory. What an odd D leaves
            over in a packed slot becomes 0.
        v_cache: [P, Hkv, ps, Dv] or packed [P, Hkv, ceil(ps/e), Dv, e], in k_cache's layout. May not overlap k_cache;
            neither may overlap an input. Both may be views of one buffer. None goes with v.
        backend: "native" or "reference".

    Returns:
        None: the caches are changed.

    Raises:
        ValueError: shape, stride, overlap, device, a cache that is read-only, or one of v and v_cache without the other;
        TypeError: dtype or type of an argument; NotImplementedError: valid, but not supported. Nothing has been written then.

    Source: reshape_and_cache of vLLM, without its scales.
    """
    _core.append_kv(k, v, slots, k_cache, v_cache, backend)


def pack_kv_blocks(k: Array, v: Array, *, page_size: int = 128, backend: str = "native") -> tuple[Array, Array, Array]:
    """A new cache in the packed layout that holds the keys and values of a batch.

    Request b has pages [b * ceil(Sk/ps), (b + 1) * ceil(Sk/ps)), in order; ps is page_size. For caches that grow, make them
    as large as they will be and fill them with `append_kv`.

    Args:
        k: [B, Sk, Hkv, D], bf16, f16 or f32. Any strides with a unit stride along D; likewise v.
        v: [B, Sk, Hkv, Dv], k's dtype.
        page_size: tokens per page. Attention is fastest if it is a multiple of its block_size; `qsa_sparse_attention`, if it
            is 4.
        backend: "native" or "reference".

    Returns:
        (k_cache [P, Hkv, ceil(D/e), ps, e], v_cache [P, Hkv, ceil(ps/e), Dv, e], page_table int32 [B, ceil(Sk/ps)]), of
        k's kind, with P = B * ceil(Sk/ps). Slots without a token are 0. seqused_k of the batch is Sk for every request.

    Raises: as `append_kv`.

    Source: the layout is this library's own, after the operand format of AVX-512 BF16 dot products.
    """
    return _core.pack_kv_blocks(k, v, page_size, backend)
