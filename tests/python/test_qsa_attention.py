"""QSA's attention over token lists: every form of rows and keys, against a plain formula."""

import numpy as np
import pytest
import tessera
import tessera.testing
import torch
from qsa import Index
from qsa_tokens import Tokens
from tensors import DTYPES, KINDS, as_kind, same_bits, to_torch
from tessera.check.bounds import LOG_BOUND, out_share, share
from tessera.check.data import packed_keys, packed_values

VARIANTS = [name for name, entry in tessera.info()["variants"].items() if entry["available"]]
PAGE_SIZES = [1, 3, 16, 24, 64]
attend = tessera.qsa_sparse_attention


def agrees(out, lse, truth, dtype, gated=False):
    want, want_lse, spread = truth
    room = 2 if gated else 1  # rounded before the gate, and after it
    return max(out_share(out, want, room * spread, dtype), share(lse, want_lse, LOG_BOUND[dtype])) <= 1


# ---- What is computed ----


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [{}, {"scale": 0.1}, {"softmax_scale": -0.3}], ids=str)
def test_it_agrees_with_the_formula(dtype, variant, scale):
    how = {"backend": "reference"} if variant == "reference" else {}
    with tessera.testing.force_variant("" if how else variant):
        for p in (Tokens(dtype), Tokens(dtype, hkv=1, group=12, d=24, dv=40, width=300)):
            out, lse = attend(*p.inputs, **p.options, **scale, **how, return_lse=True)
            assert agrees(out, lse, p.truth(*scale.values()), dtype)
            for gate in (p.gates, p.gates[..., 0], p.gates.astype(np.float32)):
                out, lse = attend(*p.inputs, **p.options, **scale, **how, gate=gate, return_lse=True)
                assert agrees(out, lse, p.truth(*scale.values(), gate=gate), dtype, gated=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_form_changes_no_bit(dtype, variant):
    p = Tokens(dtype)
    with tessera.testing.force_variant(variant):
        want = attend(*p.inputs, **p.options)
        named = {"token_to_req": p.request}
        for extra in (named, named | {"cu_seqlens_q": None}, {"query_positions": p.positions}, {"num_requests": 4}):
            assert same_bits(attend(*p.inputs, **p.options | extra), want), extra
        inputs, options = p.batch_keys()
        assert same_bits(attend(*inputs, **options), want)
        inputs, options = p.batch()
        batch, lse = attend(*inputs, **options, return_lse=True)
        assert same_bits(p.unpadded(batch), want)
        assert all((out[n:] == 0).all() for out, n in zip(batch, p.rows, strict=True))
        assert all(np.isneginf(x[n:]).all() for x, n in zip(lse, p.rows, strict=True))
        for size in PAGE_SIZES:
            (q, k, v, lists), options = p.in_pages(size)
            for keys in ((k, v), (np.ascontiguousarray(k), np.ascontiguousarray(v))):
                assert same_bits(attend(q, *keys, lists, **options, page_size=size, num_requests=4), want), size
        slots = attend(p.q, p.k, p.v, selected_kv_indices=p.slots())
        assert same_bits(slots, want)


def packed_pages(cache, values, tokens):
    """Pages [P, ps, H, D] in the packed layout, in pages of `tokens`."""
    rows = np.ascontiguousarray(cache).reshape(-1, tokens, *cache.shape[2:]).swapaxes(1, 2)
    return (packed_values if values else packed_keys)(rows)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_pages_change_no_bit(dtype, variant):
    runs = np.arange(96, dtype=np.int32) % 32 + np.arange(96, dtype=np.int32) // 48 * 40
    for p in (Tokens(dtype, d=32, dv=16), Tokens(dtype, d=15, dv=9), Tokens(dtype, d=32, dv=16, width=96)):
        if p.lists.shape[1] == 96:
            p.lists[:] = runs  # of four and more
        with tessera.testing.force_variant(variant):
            want, want_lse = attend(*p.inputs, **p.options, return_lse=True)
            for size, tokens in ((16, 4), (16, 16), (24, 8), (3, 1), (3, 3), (64, 4)):
                (q, k, v, lists), options = p.in_pages(size)
                caches = packed_pages(k, False, tokens), packed_pages(v, True, tokens)
                out, lse = attend(q, *caches, lists, **options, page_size=size, return_lse=True)
                assert same_bits(out, want), (size, tokens)
                assert same_bits(lse, want_lse), (size, tokens)
                exact = attend(q, *caches, lists, **options, page_size=size, backend="reference")
                assert same_bits(exact, attend(*p.inputs, **p.options, backend="reference"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_reads_what_pack_kv_blocks_and_append_kv_write(dtype):
    p = Tokens(dtype, rows=(5,), keys=(96,), d=32, dv=16, width=96)
    want = attend(*p.inputs, **p.options)
    k, v, table = tessera.pack_kv_blocks(p.k[None], p.v[None], page_size=4)
    assert same_bits(attend(p.q, k, v, p.lists, block_table=table), want)
    assert same_bits(attend(p.q, k, v, p.lists, block_table=np.zeros((1, 1), np.int32), page_size=96), want)
    caches = [np.zeros_like(x) for x in (k, v)]
    tessera.append_kv(p.k, p.v, np.arange(96, dtype=np.int32), *caches)
    assert same_bits(attend(p.q, *caches, selected_kv_indices=p.slots()), want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hints_and_skipped_ids_change_no_bit(variant):
    p = Tokens("bf16", width=23)
    with tessera.testing.force_variant(variant):
        want = attend(*p.inputs, **p.options)
        wrong = np.full((p.q.shape[0], 5), 1 << 20, np.int32)
        for hints in (
            {"block_indices": wrong},
            {"block_indices": wrong, "assume_compact_blocks": True, "warp_specialized": True},
            {"assume_compact_blocks": True},
            {"warp_specialized": True},
            {"k_scale": 1, "v_scale": 1.0, "compute_dtype": torch.bfloat16},
            {"compute_dtype": DTYPES["bf16"]},
        ):
            assert same_bits(attend(*p.inputs, **p.options, **hints), want), hints
        wide = np.pad(p.lists, ((0, 0), (3, 500)), constant_values=-1)
        assert same_bits(attend(*p.inputs[:3], wide, **p.options), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [None, 1, 2, 7, 64])
def test_splits(dtype, splits):
    p = Tokens(dtype, rows=(2, 1), keys=(1500, 900), width=1300)
    out, lse = attend(*p.inputs, **p.options, num_splits=splits, return_lse=True)
    assert agrees(out, lse, p.truth(), dtype)


def test_duplicates_count():
    p = Tokens(rows=(1,), keys=(8,))
    p.lists = np.array([[5, 5, 7]], np.int32)
    p.positions[:] = 7
    for out, lse in (
        attend(*p.inputs, **p.options, return_lse=True),
        attend(*p.inputs[:3], selected_kv_indices=p.lists, return_lse=True),
    ):
        assert agrees(out, lse, p.truth(), "f32")


def test_selected_tokens_within_the_budget_are_dense_attention():
    index = Index("f32", rows=20, blocks=(9,))
    tokens = tessera.qsa_select_tokens(index.q, index.k, **index.options)
    p = Tokens(rows=(20,), keys=(36,))
    out = attend(*(x[None] for x in (p.q, p.k, p.v)), tokens, query_positions=index.positions)
    dense = tessera.dense_gqa_reference(
        *(x[None] for x in (p.q, p.k, p.v)), np.zeros((1, 1, 1), np.int32), block_size=36
    )
    np.testing.assert_allclose(out, dense, atol=1e-5)


# ---- Results, kinds and views ----


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind):
    p = Tokens("bf16")
    options = {name: as_kind(kind, x) for name, x in p.options.items()}
    out, lse = attend(*(as_kind(kind, x) for x in p.inputs), **options, gate=as_kind(kind, p.gates), return_lse=True)
    want = attend(*p.inputs, **p.options, gate=p.gates, return_lse=True)
    assert isinstance(out, torch.Tensor) == (kind == "torch")
    if kind == "jax":
        assert same_bits(np.asarray(out), want[0])
    else:
        assert same_bits(out, want[0])
        assert same_bits(lse, want[1])


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("form", ["packed", "batch", "slots"])
def test_results_are_written_into_views(form, backend):
    p = Tokens("bf16")
    if form == "slots":
        inputs, options = p.inputs[:3], {"selected_kv_indices": to_torch(p.slots())}
    else:
        inputs, options = (p.inputs, p.options) if form == "packed" else p.batch()
        options = {name: to_torch(x) for name, x in options.items()}
    inputs = [to_torch(np.ascontiguousarray(x)) for x in inputs]
    options["backend"] = backend
    want, want_lse = attend(*inputs, **options, return_lse=True)
    room = torch.full((*want.shape[:-1], want.shape[-1] + 9), 7.0, dtype=torch.bfloat16)
    room_lse = torch.full((*want.shape[:-1], 3), 7.0)
    out, lse = room[..., 4:-5], room_lse[..., 1]
    assert attend(*inputs, **options, out=out, lse=lse) is out
    assert same_bits(out, want)
    assert same_bits(lse, want_lse)
    assert (room[..., :4] == 7).all()
    assert (room[..., -5:] == 7).all()
    assert (room_lse[..., ::2] == 7).all()
    heads_first = torch.empty(want.shape[-2], *want.shape[:-2], want.shape[-1], dtype=want.dtype).movedim(0, -2)
    got = attend(*inputs, **options, out=heads_first, lse=lse, return_lse=True)
    assert got[0] is heads_first
    assert got[1] is lse
    assert same_bits(heads_first, want)


def test_strided_inputs():
    p = Tokens("f32")
    want = attend(*p.inputs, **p.options, gate=p.gates)
    q = np.zeros((6, 25, 19), np.float32)[..., 2:-1].swapaxes(0, 1)
    k, v = np.zeros((99, 5, 16), np.float32)[::1, 1::2], np.zeros((198, 2, 8), np.float32)[::2]
    lists, gate = np.zeros((24, 25), np.int32).T, np.zeros((8, 6, 25), np.float32).T
    for view, array in ((q, p.q), (k, p.k), (v, p.v), (lists, p.lists), (gate, p.gates)):
        view[...] = array
    assert same_bits(attend(q, k, v, lists, **p.options, gate=gate), want)
    shared = np.broadcast_to(p.lists[:1], p.lists.shape)
    assert same_bits(
        attend(*p.inputs[:3], shared, **p.options), attend(*p.inputs[:3], np.ascontiguousarray(shared), **p.options)
    )


def test_what_no_list_names_changes_nothing():
    p = Tokens("bf16")
    want = attend(*p.inputs, **p.options)
    used = np.concatenate([p.cu_k[p.request[row]] + p.seen(row) for row in range(p.q.shape[0])])
    unused = ~np.isin(np.arange(p.k.shape[0]), used)
    assert unused.any()
    for poison in (np.nan, np.inf):
        p.k[unused] = p.v[unused] = poison
        assert same_bits(attend(*p.inputs, **p.options), want)


def test_explain():
    p = Tokens()
    text = tessera.explain(attend, *p.inputs, **p.options, return_lse=True)
    assert text == tessera.explain("qsa_sparse_attention", *p.inputs, **p.options)
    assert "variant: " in text
    assert "tokens" in text
    with pytest.raises(ValueError, match="num_splits is 0"):
        tessera.explain(attend, *p.inputs, **p.options, num_splits=0)


def test_the_threads_change_no_bit():
    p = Tokens("bf16", rows=(3, 1), keys=(3000, 900), width=2051)
    want = attend(*p.inputs, **p.options)
    before = tessera.get_num_threads()
    try:
        for threads in (1, 2, 5):
            tessera.set_num_threads(threads)
            assert same_bits(attend(*p.inputs, **p.options), want)
    finally:
        tessera.set_num_threads(before)
