"""Attention with a list per row and KV head, packed, paged and for decode; and of a single query block."""

import numpy as np
import pytest
import tessera
import tessera.testing
import torch
from sequences import Requests, within_bounds
from tensors import DTYPES, KINDS, Problem, as_kind, same_bits

attend = tessera.msa_sparse_attention
decode = tessera.msa_sparse_decode_attention
single_q = tessera.block_sparse_attention_single_q
prefill = tessera.block_sparse_gqa_prefill
VARIANTS = [name for name, entry in tessera.info()["variants"].items() if entry["available"]]
PAGE_SIZES = [1, 3, 8, 20, 64]


def with_lse(function, inputs, options, **more):
    return function(*inputs, **options, return_softmax_lse=True, **more)


# ---- What is computed ----


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("options", "truth"),
    [
        ({}, {}),
        ({"causal": False}, {"causal": False}),
        ({"softmax_scale": -0.7}, {"scale": -0.7}),
        ({"q_offset": 4}, {"offset": 4}),
        ({"q_offset": np.array([-3, 0, 50, 2], np.int32)}, {"offset": [-3, 0, 50, 2]}),
    ],
    ids=str,
)
def test_agreement_with_the_definition(dtype, variant, options, truth):
    p = Requests(dtype)
    how = {"backend": "reference"} if variant == "reference" else {}
    exact = p.truth(**truth)
    with tessera.testing.force_variant("" if how else variant):
        assert within_bounds(with_lse(attend, p.inputs, p.packed, **options, **how), exact, dtype)
        assert within_bounds(with_lse(attend, *p.paged(3), **options, **how), exact, dtype)


@pytest.mark.parametrize("group", [1, 3, 5, 16, 48])
def test_groups(group):
    p = Requests("bf16", group=group)
    got = with_lse(attend, p.inputs, p.packed)
    assert within_bounds(got, p.truth(), "bf16")
    assert within_bounds(with_lse(attend, p.inputs, p.packed, backend="reference"), p.truth(), "bf16")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_where_the_keys_lie_changes_no_bit(dtype, variant):
    p = Requests(dtype)
    with tessera.testing.force_variant(variant):
        packed = with_lse(attend, p.inputs, p.packed)
        for size in PAGE_SIZES:
            for got, want in zip(with_lse(attend, *p.paged(size)), packed, strict=True):
                assert same_bits(got, want), size


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_f32_queries_over_other_keys(dtype):
    p = Requests(dtype)
    p.q = Requests("f32").q  # which no 16-bit type has
    for backend in ("native", "reference"):
        for inputs, options in ((p.inputs, p.packed), p.paged(8)):
            out, lse = with_lse(attend, inputs, options, backend=backend)
            assert out.dtype == np.float32
            assert within_bounds((out, lse), p.truth(), "f16")
    for variant, entry in tessera.info()["variants"].items():
        if not (entry["available"] and variant.endswith("bf16")):
            continue
        with (
            tessera.testing.force_variant(variant),
            pytest.raises(NotImplementedError, match="does not take float32 queries over"),
        ):
            attend(*p.inputs, **p.packed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_request_is_a_prefill_with_a_list_per_token(dtype):
    p = Requests(dtype, rows=(5, 1, 19), keys=(40, 7, 33))
    out, lse = with_lse(attend, p.inputs, p.packed)
    for b in range(3):
        alone, alone_lse = prefill(*p.of(b), block_size=8, block_q=1, return_lse=True)
        rows = slice(*p.cu_q[b : b + 2])
        assert same_bits(out[rows], alone[0])
        assert same_bits(lse[rows], alone_lse[0])


@pytest.mark.parametrize("seqlen_q", [1, 3])
@pytest.mark.parametrize("options", [{}, {"q_offset": 20}, {"causal": False, "softmax_scale": 0.3}], ids=str)
def test_decode_is_attention_of_equal_numbers_of_rows(seqlen_q, options):
    p = Requests("bf16", rows=(seqlen_q,) * 4)
    (q, k, v, ids), packed = p.paged(16)
    tables = {name: packed[name] for name in ("page_table", "seqused_k", "block_size")}
    want = with_lse(attend, (q, k, v, ids), packed, **options)
    got = with_lse(decode, (q, k, v, ids), tables, seqlen_q=seqlen_q, **options)
    reference = with_lse(decode, (q, k, v, ids), tables, seqlen_q=seqlen_q, backend="reference", **options)
    assert all(map(same_bits, got, want))
    np.testing.assert_allclose(got[1], reference[1], rtol=0, atol=1e-4)
    np.testing.assert_allclose(got[0].astype(np.float32), reference[0].astype(np.float32), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_q", [1, 8, 37])
def test_pages_of_a_prefill_change_no_bit(dtype, block_q):
    p = Requests(dtype, rows=(37, 37), keys=(50, 41))
    lists = -(-37 // block_q)
    ids = np.random.default_rng(0).integers(-1, 7, (2, lists, 4)).astype(np.int32)
    q = p.q.reshape(2, 37, *p.q.shape[1:])
    for size in PAGE_SIZES:
        k, v, tables = p.pages(size)
        options = {"block_size": 8, "block_q": block_q, **tables}
        got = prefill(q, k, v, ids, return_lse=True, **options)
        state = tessera.block_sparse_gqa_prefill_state(q, k, v, ids, **options)
        for b in range(2):
            flat = (q[b : b + 1], *p.of(b)[1:3], ids[b : b + 1])
            for x, y in zip(got, prefill(*flat, block_size=8, block_q=block_q, return_lse=True), strict=True):
                assert same_bits(x[b], y[0])
            flat_state = tessera.block_sparse_gqa_prefill_state(*flat, block_size=8, block_q=block_q)
            assert all(same_bits(x[b], y[0]) for x, y in zip(state, flat_state, strict=True))
        oracle = prefill(*(x.astype(np.float32) for x in (q, k, v)), ids, backend="reference", **options)
        np.testing.assert_allclose(got[0].astype(np.float32), oracle, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"q_offset": -3}, {"causal": False, "softmax_scale": 0.2}], ids=str)
@pytest.mark.parametrize("per_head", [False, True])
def test_single_q_is_a_prefill_of_one_list(dtype, options, per_head):
    p = Problem(dtype, batch=1, sq=13, sk=45, hq=3, hkv=3)
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (p.q, p.k, p.v))  # heads first
    ids = np.array([[4, -1, 0, 2, 2], [1, 99, -(2**31), 3, 0], [-1] * 5], np.int32)
    lists = ids if per_head else ids[0]
    want = prefill(
        p.q, p.k, p.v, ids[None, :, None] if per_head else ids[None, :1], block_size=8, block_q=13, return_lse=True, **options
    )  # fmt: skip
    out, lse = single_q(q, k, v, lists, block_size=8, return_lse=True, **options)
    assert same_bits(out.swapaxes(0, 1), want[0][0])
    assert same_bits(lse.swapaxes(0, 1), want[1][0])
    exact = single_q(*(x.astype(np.float32) for x in (q, k, v)), lists, block_size=8, backend="reference", **options)
    np.testing.assert_allclose(out.astype(np.float32), exact, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_all_blocks_listed_is_torch_attention(kind):
    p = Requests("f32", rows=(12, 6), keys=(12, 6), d=16, dv=16)
    ids = np.broadcast_to(np.arange(2, dtype=np.int32), (2, 18, 2))
    options = {name: as_kind(kind, x) for name, x in p.packed.items() if name != "block_size"}
    out = attend(*(as_kind(kind, np.ascontiguousarray(x)) for x in (p.q, p.k, p.v, ids)), block_size=8, **options)
    for b in range(2):
        q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in p.of(b)[:3])
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        got = torch.as_tensor(out[p.cu_q[b] : p.cu_q[b + 1]])
        torch.testing.assert_close(got, want[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


# ---- Tensors ----


def spread_out(array, axis):
    """The same values with a stride of three elements, rows or whatever along `axis`, and an offset."""
    return np.repeat(array, 3, axis=axis)[(slice(None),) * axis + (slice(1, None, 3),)]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_any_strides(backend):
    p = Requests("bf16")
    inputs, options = p.paged(3)
    want = with_lse(attend, inputs, options, backend=backend)
    q, k, v, ids = inputs
    for axis in range(3):
        lists = spread_out(ids, axis)
        assert all(map(same_bits, with_lse(attend, (q, k, v, lists), options, backend=backend), want))
    token_major = np.ascontiguousarray(ids.transpose(1, 0, 2)).transpose(1, 0, 2)
    entry_major = np.ascontiguousarray(ids.transpose(2, 1, 0)).transpose(2, 1, 0)
    for lists in (token_major, entry_major):
        assert all(map(same_bits, with_lse(attend, (q, k, v, lists), options, backend=backend), want))
    views = [spread_out(q, 0), spread_out(k, 1), spread_out(v, 2), ids]
    tables = {n: spread_out(x, x.ndim - 1) for n, x in options.items() if n != "block_size"}
    tables["page_table"] = spread_out(tables["page_table"], 0)
    room, lse_room = np.zeros((25, 12, 11), q.dtype), np.zeros((6, 50), np.float32)
    out, lse = room[:, ::2, 2:10], lse_room[:, ::2].T
    got = with_lse(attend, views, tables, block_size=8, out=out, lse=lse, backend=backend)
    assert got[0] is out
    assert got[1] is lse
    assert same_bits(out, want[0])
    assert same_bits(lse, want[1])
    assert not room[:, 1::2].any()
    assert not room[..., [0, 1, 10]].any()
    assert not lse_room[:, 1::2].any()


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind):
    p = Requests("f32")
    for function, (inputs, options) in (
        (attend, (p.inputs, p.packed)),
        (attend, p.paged(8)),
        (decode, (p.paged(8)[0], {n: x for n, x in p.paged(8)[1].items() if n != "cu_seqlens_q"})),
    ):
        if function is decode:
            p = Requests("f32", rows=(1,) * 4)
            inputs = (p.q, *inputs[1:3], p.ids)
        want = with_lse(function, inputs, options)
        tables = {n: as_kind(kind, x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
        got = with_lse(function, [as_kind(kind, np.ascontiguousarray(x)) for x in inputs], tables)
        assert isinstance(got[0], np.ndarray if kind in ("numpy", "dlpack") else type(as_kind(kind, p.q)))
        assert all(map(same_bits, got, want))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_which_results_come_back(kind):
    p = Requests("bf16")
    packed = {n: as_kind(kind, x) if n != "block_size" else x for n, x in p.packed.items()}
    q = np.ascontiguousarray(p.q[:13].swapaxes(0, 1))
    one = [q, *(np.ascontiguousarray(np.repeat(x[:40], 3, 1).swapaxes(0, 1)) for x in (p.k, p.v)), p.ids[0, 0]]
    for function, inputs, options, flag in (
        (attend, p.inputs, packed, "return_softmax_lse"),
        (single_q, one, {"block_size": 8}, "return_lse"),
    ):
        inputs = [as_kind(kind, np.ascontiguousarray(x)) for x in inputs]
        want, want_lse = function(*inputs, **options, **{flag: True})
        out, lse = as_kind(kind, np.zeros(want.shape, p.q.dtype)), as_kind(kind, np.zeros(want_lse.shape, np.float32))
        assert same_bits(function(*inputs, **options), want)
        assert function(*inputs, **options, out=out) is out
        assert same_bits(out, want)
        assert same_bits(function(*inputs, **options, lse=lse), want)  # written all the same
        assert same_bits(lse, want_lse)
        got = function(*inputs, **options, out=out, lse=lse, **{flag: True})
        assert got[0] is out
        assert got[1] is lse


def test_q_offset_as_an_int_and_as_a_tensor():
    p = Requests("f32")
    for offset in (-5, 0, 16, 2**31 - 100, -(2**31)):
        one = attend(*p.inputs, **p.packed, q_offset=offset)
        assert same_bits(one, attend(*p.inputs, **p.packed, q_offset=np.int64(offset)))
        assert same_bits(one, attend(*p.inputs, **p.packed, q_offset=np.full(4, offset, np.int32)))
    assert same_bits(
        attend(*p.inputs, **p.packed, q_offset=p.cu_k[1:] - p.cu_k[:-1] - p.cu_q[1:] + p.cu_q[:-1]),
        attend(*p.inputs, **p.packed),
    )


def test_nothing_to_do():
    p = Requests("f32", rows=(), keys=())
    out, lse = with_lse(attend, p.inputs, p.packed)
    assert out.shape == (0, 6, 8)
    assert lse.shape == (0, 6)
    p = Requests("f32", width=0)
    out, lse = with_lse(attend, p.inputs, p.packed)
    assert not out.any()
    assert np.isneginf(lse).all()


# ---- Values that are no ids, pages or lengths ----


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, 10**6])
def test_keys_behind_bad_pages_are_absent(backend, bad):
    p = Requests("f32")
    (q, k, v, ids), options = p.paged(8)  # a page is a block
    table = options["page_table"].copy()
    table[0, 1] = table[2, 0] = bad
    without = ids.copy()
    without[:, :5][ids[:, :5] == 1] = -1
    without[:, 5:6][ids[:, 5:6] == 0] = -1
    want = with_lse(attend, (q, k, v, without), options, backend=backend)
    got = with_lse(attend, (q, k, v, ids), {**options, "page_table": table}, backend=backend)
    assert all(map(same_bits, got, want))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_lengths_are_cut_to_what_there_is(backend):
    p = Requests("f32")
    inputs, options = p.paged(8)
    options["page_table"][1, 1:] = -1
    offset = np.array([35, 7, 32, 0], np.int32)
    for length, same_as in ((2**31 - 1, 48), (-5, 0), (-(2**31), 0)):
        lengths = [np.array([n, 7, 33, 19], np.int32) for n in (length, same_as)]
        got, want = (
            with_lse(attend, inputs, {**options, "seqused_k": n}, q_offset=offset, backend=backend) for n in lengths
        )
        assert all(map(same_bits, got, want))
    assert not got[0][:5].any()  # no keys
    assert np.isneginf(got[1][:5]).all()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("name", "values", "empty", "kept"),
    [
        ("cu_seqlens_q", [0, 5, 5, 6, 20], (20, 25), (0, 6)),  # the last request is shorter, hence at other positions
        ("cu_seqlens_q", [0, 5, 5, 4, 25], (5, 25), (0, 5)),  # two requests that would share rows
        ("cu_seqlens_q", [0, 5, 5, 6, 26], (6, 25), (0, 6)),
        ("cu_seqlens_q", [-1, 5, 5, 6, 25], (0, 5), (5, 25)),
        ("cu_seqlens_k", [0, 40, 47, 46, 99], (5, 6), (0, 5)),
        ("cu_seqlens_k", [0, 40, 47, 80, 2**31 - 1], (6, 25), (0, 6)),
        ("cu_seqlens_k", [-(2**31), 40, 47, 80, 99], (0, 5), (5, 25)),
    ],
)
def test_impossible_requests_are_empty_and_the_others_keep_their_bits(backend, name, values, empty, kept):
    p = Requests("f32")
    want, want_lse = with_lse(attend, p.inputs, p.packed, backend=backend)
    out, lse = np.full_like(want, np.nan), np.full_like(want_lse, np.nan)
    changed = {**p.packed, name: np.array(values, np.int32)}
    with_lse(attend, p.inputs, changed, out=out, lse=lse, backend=backend)
    empty, kept = slice(*empty), slice(*kept)
    assert not out[empty].any()
    assert np.isneginf(lse[empty]).all()
    assert same_bits(out[kept], want[kept])
    assert same_bits(lse[kept], want_lse[kept])


# ---- Plans ----


def test_explain():
    p = Requests("bf16")
    text = tessera.explain(attend, *p.inputs, **p.packed, return_softmax_lse=True)
    assert text == tessera.explain("msa_sparse_attention", *p.inputs, **p.packed)
    assert "variant: " in text
    (q, k, v, ids), options = Requests("bf16", rows=(1,) * 4).paged(8)
    del options["cu_seqlens_q"]
    assert "variant: " in tessera.explain(decode, q, k, v, ids, **options)
    with pytest.raises(ValueError, match="msa_sparse_decode_attention: block_size is 0"):
        tessera.explain(decode, q, k, v, ids, **options | {"block_size": 0})
    one = Problem("bf16", batch=1, sq=8, sk=24, hq=3, hkv=3)
    heads_first = [x[0].swapaxes(0, 1) for x in (one.q, one.k, one.v)]
    text = tessera.explain(single_q, *heads_first, np.arange(3, dtype=np.int32), block_size=8, return_lse=True)
    assert "variant: " in text
