"""What the operators compute, seen from Python: against torch, against double precision, against each other."""

import numpy as np
import pytest
import tessera
import tessera.testing
import torch
from tensors import DTYPES, Problem, as_kind, attention_bound, same_bits, to_torch

prefill = tessera.block_sparse_gqa_prefill
VARIANTS = [name for name, entry in tessera.info()["variants"].items() if entry["available"]]


def reference(q, k, v, ids, **options):
    return prefill(q, k, v, ids, backend="reference", **options)


# ---- Block-sparse attention ----


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"softmax_scale": -0.7},
        {"q_offset": 3},
        {"q_offset": np.array([-9, 40], np.int32)},
        {"block_q": 8, "block_size": 16},
        {"block_q": 37, "block_size": 1},
    ],
    ids=str,
)
def test_native_agrees_with_double_precision(dtype, options, variant):
    options = {"block_size": 8, **options}
    lists = -(-37 // options.get("block_q", options["block_size"]))
    p = Problem(dtype)
    rng = np.random.default_rng(1)
    for shape in ((2, lists, 5), (2, 2, lists, 5)):
        ids = rng.integers(-2, -(-53 // options["block_size"]) + 1, shape).astype(np.int32)
        with tessera.testing.force_variant(variant):
            out, lse = prefill(p.q, p.k, p.v, ids, return_lse=True, **options)
        assert attention_bound(reference, p.q, p.k, p.v, ids, out, dtype, **options) < 1
        exact = reference(*(x.astype(np.float32) for x in (p.q, p.k, p.v)), ids, return_lse=True, **options)[1]
        np.testing.assert_allclose(lse, exact, rtol=0, atol=1e-5 if dtype == "f32" else 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_size", [16, 24])
def test_all_blocks_listed_is_torch_attention(dtype, causal, block_size):
    p = Problem(dtype, sq=64, sk=64, hq=6, hkv=2, d=32, dv=32)
    q, k, v = (to_torch(x) for x in (p.q, p.k, p.v))
    blocks = -(-64 // block_size)
    ids = torch.arange(blocks, dtype=torch.int32).expand(2, blocks, blocks)
    out = prefill(q, k, v, ids, block_size=block_size, causal=causal)
    wide = [x.float().transpose(1, 2) for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal, enable_gqa=True).transpose(
        1, 2
    )
    tolerance = {"f32": 1e-5, "f16": 3e-3, "bf16": 2e-2}[dtype]
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agreement_with_the_numpy_reference_of_the_package(dtype):
    p = Problem(dtype, sq=53, sk=53)
    dense = tessera.dense_gqa_reference(*p.inputs, block_size=p.block)
    assert dense.dtype == np.float32
    tolerance = {"f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}[dtype]
    np.testing.assert_allclose(prefill(*p.inputs, block_size=p.block).astype(np.float32), dense, tolerance, tolerance)


def test_a_list_is_a_set():
    p = Problem("f32")
    once = np.array([[[0, 2, 5, -1, -1, -1]]], np.int32).repeat(5, 1).repeat(2, 0)
    messy = np.array([[[5, 2, 2**31 - 1, 0, 5, -(2**31)]]], np.int32).repeat(5, 1).repeat(2, 0)
    first = prefill(p.q, p.k, p.v, once, block_size=8)
    np.testing.assert_allclose(prefill(p.q, p.k, p.v, messy, block_size=8), first, rtol=1e-5, atol=1e-6)
    assert same_bits(prefill(p.q, p.k, p.v, once[..., :3], block_size=8), first)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_rows_without_keys(backend):
    p = Problem("bf16")
    out, lse = prefill(*p.inputs, block_size=8, q_offset=-10, return_lse=True, backend=backend)
    assert not out[:, :10].any()
    assert np.isneginf(lse[:, :10]).all()
    assert not out[0, 8:16].any()  # an empty list
    o, l, m = tessera.block_sparse_gqa_prefill_state(*p.inputs, block_size=8, q_offset=-10, backend=backend)
    assert not o[:, :10].any()
    assert not l[:, :10].any()
    assert np.isneginf(m[:, :10]).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_which_results_come_back(kind):
    p = Problem("bf16")
    inputs = p.inputs_as(kind)
    expected, expected_lse = prefill(*p.inputs, block_size=8, return_lse=True)
    new_out, new_lse = np.zeros_like(expected), np.zeros_like(expected_lse)
    out, lse = as_kind(kind, new_out), as_kind(kind, new_lse)

    assert same_bits(prefill(*inputs, block_size=8), expected)
    assert prefill(*inputs, block_size=8, lse=lse) is not lse  # written all the same
    assert same_bits(new_lse, expected_lse)
    assert prefill(*inputs, block_size=8, out=out) is out
    assert same_bits(new_out, expected)
    new_out[...] = 0
    new_lse[...] = 0
    got = prefill(*inputs, block_size=8, out=out, lse=lse, return_lse=True)
    assert isinstance(got, tuple)
    assert got[0] is out
    assert got[1] is lse
    assert same_bits(new_out, expected)
    assert same_bits(new_lse, expected_lse)


def test_out_of_another_kind_is_returned_as_given():
    p = Problem("f32")
    expected = prefill(*p.inputs, block_size=8)
    out = torch.zeros(expected.shape)
    assert prefill(*p.inputs, block_size=8, out=out) is out
    assert same_bits(out, expected)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_q_offset_as_an_int_and_as_a_tensor(kind):
    p = Problem("f32")
    inputs = p.inputs_as(kind)
    for offset in (-5, 0, 16, 2**31 - 100, -(2**31)):
        one = prefill(*inputs, block_size=8, q_offset=offset)
        same = prefill(*inputs, block_size=8, q_offset=np.int64(offset))
        each = prefill(*inputs, block_size=8, q_offset=as_kind(kind, np.full(2, offset, np.int32)))
        assert same_bits(one, each)
        assert same_bits(one, same)
    strided = np.array([4, -1, 7, -1], np.int32)[::2]
    both = prefill(*p.inputs, block_size=8, q_offset=strided)
    for b, offset in enumerate((4, 7)):
        alone = prefill(*(x[b : b + 1] for x in p.inputs), block_size=8, q_offset=offset)
        assert same_bits(alone[0], both[b])


def test_default_offset_aligns_the_last_query_with_the_last_key():
    p = Problem("f32")
    assert same_bits(prefill(*p.inputs, block_size=8), prefill(*p.inputs, block_size=8, q_offset=53 - 37))


# ---- States and merges ----


def shards(p: Problem, count: int):
    """The lists of p restricted to each of `count` holders of every count-th block; the others' ids are -1."""
    return [np.where(p.ids % count == r, p.ids, -1).astype(np.int32) for r in range(count)]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_merged_shards_are_the_whole(kind, dtype, count):
    p = Problem(dtype)
    whole, whole_lse = prefill(*p.inputs, block_size=8, return_lse=True)
    q, k, v, _ = p.inputs_as(kind)
    lists = [as_kind(kind, ids) for ids in shards(p, count)]
    states = [tessera.block_sparse_gqa_prefill_state(q, k, v, ids, block_size=8) for ids in lists]
    output_dtype = q.dtype if kind == "torch" else DTYPES[dtype]
    merged = tessera.cp_merge(states, output_dtype)
    assert merged.dtype == q.dtype
    bound = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
    np.testing.assert_allclose(wide(merged), wide(whole), rtol=bound, atol=bound)

    partials = [prefill(q, k, v, ids, block_size=8, return_lse=True) for ids in lists]
    out, lse = tessera.merge_states(partials)
    assert out.dtype == q.dtype
    np.testing.assert_allclose(wide(out), wide(whole), rtol=2 * bound, atol=2 * bound)
    np.testing.assert_allclose(wide(lse), whole_lse, rtol=0, atol=1e-4)


def wide(tensor) -> np.ndarray:
    if isinstance(tensor, torch.Tensor):
        return tensor.float().numpy()
    return tensor.astype(np.float32)


def test_state_is_the_output_before_the_division():
    p = Problem("f32")
    out, lse = prefill(*p.inputs, block_size=8, return_lse=True)
    o, l, m = tessera.block_sparse_gqa_prefill_state(*p.inputs, block_size=8)
    empty = l == 0
    assert np.array_equal(empty, np.isneginf(lse))
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(np.where(empty[..., None], 0, o / l[..., None]), out, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(m + np.log(l), lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_empty_shards_weigh_nothing(backend):
    rng = np.random.default_rng(0)
    o, l, m = (rng.random(s).astype(np.float32) for s in ((5, 8), (5,), (5,)))
    inf = np.float32(np.inf)
    nothing = (np.full_like(o, np.nan), np.zeros_like(l), np.full_like(m, -inf))
    alone = tessera.cp_merge([(o, l, m)], np.float32, backend=backend)
    assert same_bits(tessera.cp_merge([nothing, (o, l, m), nothing], np.float32, backend=backend), alone)
    assert not tessera.cp_merge([nothing, nothing], np.float32, backend=backend).any()

    out, lse = tessera.merge_states([(nothing[0], nothing[2]), (o, m)], backend=backend)
    np.testing.assert_allclose(out, o, rtol=1e-6)
    np.testing.assert_allclose(lse, m, rtol=0, atol=1e-6)
    out, lse = tessera.merge_states([(nothing[0], nothing[2])], backend=backend)
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4, 5, 8)])
def test_merges_of_every_rank(shape):
    rng = np.random.default_rng(0)
    states = [
        (rng.standard_normal(shape, np.float32), rng.random(shape[:-1], np.float32), rng.random(shape[:-1], np.float32))
        for _ in range(3)
    ]
    states = [tuple(np.asarray(x) for x in s) for s in states]
    native = tessera.cp_merge(states, np.float32)
    assert native.shape == shape
    np.testing.assert_allclose(native, tessera.cp_merge(states, np.float32, backend="reference"), rtol=1e-5, atol=1e-6)
    out, lse = tessera.merge_states([(o, m) for o, _, m in states])
    assert (out.shape, lse.shape) == (shape, shape[:-1])


def test_merges_read_strided_states():
    rng = np.random.default_rng(0)
    o = rng.standard_normal((2, 3, 7, 8), np.float32)
    l, m = rng.random((2, 3, 7), np.float32), rng.random((2, 3, 7), np.float32)
    dense = tessera.cp_merge([(o, l, m)] * 2, np.float32)
    views = [np.repeat(x, 2, axis=1)[:, ::2] for x in (o, l, m)]
    assert same_bits(tessera.cp_merge([views, list(views)], np.float32), dense)


def test_output_dtype_of_a_merge():
    import ml_dtypes

    o, l = np.ones((2, 8), np.float32), np.ones(2, np.float32)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.dtype(np.float16), torch.bfloat16):
        merged = tessera.cp_merge([(o, l, l)], dtype)
        assert isinstance(merged, np.ndarray)
        assert merged.dtype.name == str(dtype).removeprefix("torch.") or merged.dtype == dtype
    assert tessera.cp_merge([(to_torch(o), to_torch(l), to_torch(l))], torch.bfloat16).dtype == torch.bfloat16
    assert tessera.cp_merge([(to_torch(o), to_torch(l), to_torch(l))], np.float16).dtype == torch.float16


# ---- Selection ----


def check_lists(ids, blocks: int) -> None:
    assert ids.dtype == np.int32
    for row in ids.reshape(-1, ids.shape[-1]):
        used = row[row >= 0]
        assert (np.diff(used) > 0).all()
        assert (row[len(used) :] == -1).all()
        assert (used < blocks).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_q", [1, 8])
def test_moba_is_the_mean_of_the_keys(dtype, block_q):
    p = Problem(dtype, sq=40, sk=64)
    ids = tessera.moba_select(p.q, p.k, topk=4, block_size=8, block_q=block_q)
    assert ids.shape == (2, 2, 40 // block_q, 4)
    check_lists(ids, 8)
    q = p.q.astype(np.float64).reshape(2, 40 // block_q, block_q, 2, 2, 16).mean(axis=(2, 4))
    keys = p.k.astype(np.float64).reshape(2, 8, 8, 2, 16).mean(axis=2)
    scores = np.einsum("bqhd,bnhd->bhqn", q, keys)
    for b, h, i in np.ndindex(ids.shape[:3]):
        own = (64 - 40 + i * block_q) // 8
        row = scores[b, h, i, : own + 1]
        row[own] = np.inf
        best = np.argsort(-row, kind="stable")
        if len(best) <= 4 or row[best[3]] - row[best[4]] > 1e-3:
            assert [n for n in ids[b, h, i] if n >= 0] == sorted(best[:4])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_selectors_agree_with_double_precision(kind, dtype):
    p = Problem(dtype, sq=64, sk=96)
    q, k = as_kind(kind, p.q), as_kind(kind, p.k)
    wide_q, wide_k = p.q.astype(np.float32), p.k.astype(np.float32)
    calls = [
        (tessera.moba_select, {"topk": 5, "block_size": 8, "block_q": 4, "init_blocks": 1}),
        (tessera.mass_select, {"topk": 5, "block_size": 8, "block_q": 16, "stride": 3, "local_blocks": 2}),
    ]
    for select, options in calls:
        ids = np.asarray(select(q, k, **options))
        check_lists(ids, 12)
        exact = select(wide_q, wide_k, backend="reference", **options)
        # Random scores leave a gap at the cut almost everywhere; bf16 pair dots may swap two blocks within the bound.
        different = (ids != exact).any(axis=-1).mean()
        assert different <= (0 if dtype == "f32" else 0.02)


def test_few_visible_blocks_are_all_listed():
    p = Problem("f32", sq=20, sk=20)
    for ids in (
        tessera.moba_select(p.q, p.k, topk=8, block_size=8, block_q=1),
        tessera.mass_select(p.q, p.k, topk=8, block_size=8, block_q=1),
    ):
        for t in range(20):
            assert (ids[:, :, t] == [*range(t // 8 + 1), *[-1] * (7 - t // 8)]).all()


def test_selected_lists_go_straight_into_attention():
    p = Problem("bf16", sq=64, sk=64)
    for select, block in ((tessera.moba_select, 8), (tessera.mass_select, 16)):
        ids = select(p.q, p.k, topk=99, block_size=block, block_q=block)
        blocks = 64 // block
        everything = np.arange(blocks, dtype=np.int32)[None, None].repeat(blocks, 1).repeat(2, 0)
        sparse = prefill(p.q, p.k, p.v, ids, block_size=block)
        assert same_bits(sparse, prefill(p.q, p.k, p.v, everything, block_size=block))


# ---- Around the operators ----


def test_forced_variants():
    p = Problem("f32")
    plain = prefill(*p.inputs, block_size=8)
    with tessera.testing.force_variant("scalar"):
        scalar = prefill(*p.inputs, block_size=8)
        with tessera.testing.force_variant(VARIANTS[0]):
            prefill(*p.inputs, block_size=8)
        assert same_bits(prefill(*p.inputs, block_size=8), scalar)
    assert same_bits(prefill(*p.inputs, block_size=8), plain)
    np.testing.assert_allclose(scalar, plain, rtol=1e-5, atol=1e-6)
    with (
        tessera.testing.force_variant("mmx"),
        pytest.raises(ValueError, match="block_sparse_gqa_prefill: .*mmx"),
    ):
        prefill(*p.inputs, block_size=8)
    for name in set(tessera.info()["variants"]) - set(VARIANTS):
        with (
            tessera.testing.force_variant(name),
            pytest.raises(NotImplementedError, match=f"block_sparse_gqa_prefill: .*{name}"),
        ):
            prefill(*p.inputs, block_size=8)


def test_explain_says_what_would_run():
    p = Problem("bf16")
    text = tessera.explain(prefill, *p.inputs, block_size=8, return_lse=True)
    assert text == tessera.explain("block_sparse_gqa_prefill", *p.inputs, block_size=8)
    assert tessera.info()["variant"] in text or VARIANTS[1] in text
    assert len(text.splitlines()) >= 3
    with tessera.testing.force_variant("scalar"):
        assert "scalar" in tessera.explain(prefill, *p.inputs, block_size=8)
    with pytest.raises(ValueError, match="block_size"):
        tessera.explain(prefill, *p.inputs, block_size=0)
    with pytest.raises(TypeError):
        tessera.explain(prefill, *p.inputs, block=8)


def test_info_is_plain_data():
    import json

    facts = json.loads(json.dumps(tessera.info()))
    assert facts["version"] == tessera.__version__
    assert facts["variant"] in facts["variants"]
    assert list(facts["variants"])[-1] == "scalar"
    for entry in facts["variants"].values():
        assert entry["available"] == (entry["reason"] == "")
    assert facts["threads"] == tessera.get_num_threads() >= 1
    assert facts["usable_cores"] <= facts["cores"]
    assert all(size > 0 for size in facts["cache_bytes"].values())


def test_the_public_names_are_documented():
    for name in tessera.__all__:
        if name != "__version__":
            assert getattr(tessera, name).__doc__, name
