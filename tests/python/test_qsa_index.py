"""QSA's block scores and selections, in every form of rows and keys, against a plain formula."""

import numpy as np
import pytest
import tessera
import tessera.testing
import torch
from qsa import Index, formula
from tensors import DTYPES, KINDS, as_kind, same_bits, to_torch

VARIANTS = [name for name, entry in tessera.info()["variants"].items() if entry["available"]]
PAGE_SIZES = [1, 3, 8, 24, 64]
BAD_PAGES = [-1, 1000, -(2**31), 2**31 - 1]


def of(p, weights=None, scale=None):
    rows = p.q.shape[1]
    visible = np.minimum((p.positions + 1) // p.block, np.array(p.blocks)[:, None]).reshape(-1)
    q, w = (None if x is None else x.reshape(-1, *x.shape[2:]) for x in (p.q, weights))
    return formula(q, np.repeat(p.k, rows, axis=0), visible, w, scale)


def agrees(got, want):
    value, size = want
    got = np.asarray(got).astype(np.float64).reshape(value.shape)
    same = got == value
    return (same | (np.abs(np.where(same, 0, got) - np.where(same, 0, value)) <= 1e-4 * size)).all()


def best(scores, k):
    """The rule, in words of Python."""
    lists = np.full((*scores.shape[:-1], k), -1, np.int32)
    for row in np.ndindex(scores.shape[:-1]):
        seen = np.flatnonzero(~np.isneginf(scores[row]))
        order = sorted(seen, key=lambda n: (np.isnan(scores[row][n]), -np.nan_to_num(scores[row][n]), n))[:k]
        lists[row][: len(order)] = sorted(order)
    return lists


# ---- What is computed ----


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"score_scale": 4.0}], ids=str)
def test_scores_agree_with_the_formula(dtype, variant, options):
    how = {"backend": "reference"} if variant == "reference" else {}
    scale = {"scale": 0.5, "score_scale": 0.25}.get(next(iter(options), None))
    with tessera.testing.force_variant("" if how else variant):
        for heads, dim in ((4, 16), (3, 24), (1, 8)):
            p = Index(dtype, heads=heads, dim=dim)
            for weights in (None, p.weights):
                got = tessera.qsa_indexer_mqa_score(p.q, p.k, weights=weights, **p.options, **options, **how)
                assert got.shape == (3, 5, 40)
                assert agrees(got, of(p, weights, scale))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_form_changes_no_bit(dtype, variant):
    p = Index(dtype)
    functions = (tessera.qsa_indexer_mqa_score, tessera.qsa_select, tessera.qsa_select_tokens)
    with tessera.testing.force_variant(variant):
        want = [f(p.q, p.k, **p.options).reshape(15, -1) for f in functions]
        q, options = p.packed()
        to_request = {"token_to_req": np.repeat(np.arange(3, dtype=np.int32), 5)}
        for extra in ({}, to_request, to_request | {"cu_seqlens_q": None}):
            got = [f(q, p.k, **options | extra) for f in functions]
            assert all(same_bits(x, y) for x, y in zip(got, want, strict=True)), extra
        for size in PAGE_SIZES:
            cache, table = p.pages(size)
            options["block_table"] = table
            for keys in (cache, cache[:, :, 0]):
                got = [f(q, keys, page_size=size, num_requests=3, **options) for f in functions]
                assert got[0].shape == (15, table.shape[1] * size)
                assert np.isneginf(got[0][:, 40:]).all()
                got[0] = np.pad(got[0], ((0, 0), (0, 40)), constant_values=-np.inf)[:, :40]
                assert all(same_bits(x, y) for x, y in zip(got, want, strict=True)), size


def test_positions_are_inferred():
    p = Index(rows=30)
    scores = tessera.qsa_indexer_mqa_score(p.q, p.k)
    assert [[int(np.isfinite(row).sum()) for row in request] for request in scores] == [
        [(t + 1) // 4 for t in range(30)]
    ] * 3
    q = p.q.reshape(90, 4, 16)
    cu = np.array([0, 10, 10, 50], np.int32)
    visible = np.isfinite(tessera.qsa_indexer_mqa_score(q, p.k, cu_seqlens_q=cu)).sum(axis=1)
    assert visible.tolist() == [*((t + 1) // 4 for t in range(10)), *((t + 1) // 4 for t in range(40)), *[0] * 40]
    to_request = np.array([2, 0] * 45, np.int32)
    visible = np.isfinite(tessera.qsa_indexer_mqa_score(q, p.k, token_to_req=to_request)).sum(axis=1)
    assert visible.tolist() == [(t // 2 + 1) // 4 for t in range(90)]
    alone = tessera.qsa_indexer_mqa_score(q, p.k[:1])
    assert np.isfinite(alone).sum(axis=1).tolist() == [min((t + 1) // 4, 40) for t in range(90)]


def test_lengths_end_what_is_seen():
    p = Index()
    scores = tessera.qsa_indexer_mqa_score(
        p.q,
        p.k,
        query_positions=np.full((3, 5), 1000, np.int32),
        seq_lens_q=np.array([5, 2, -1], np.int32),
        seq_lens_k=np.array([13, 2**31 - 1, 40], np.int32),
    )
    assert np.isfinite(scores).sum(axis=2).tolist() == [[3] * 5, [40, 40, 0, 0, 0], [0] * 5]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("budget", [4, 7, 32, 160, 2048])
def test_selection_is_the_best_of_the_scores(variant, budget):
    p = Index("bf16", rows=9, blocks=(300, 9, 133))
    with tessera.testing.force_variant(variant):
        scores = tessera.qsa_indexer_mqa_score(p.q, p.k, **p.options)
        lists = tessera.qsa_select(p.q, p.k, budget=budget, **p.options)
        assert np.array_equal(lists, best(scores, budget // 4))
        assert np.array_equal(tessera.topk_blocks(scores, budget // 4), lists)
        tokens = tessera.qsa_select_tokens(p.q, p.k, budget=budget, **p.options)
    assert tokens.shape == (3, 9, budget // 4 * 4 + 3)
    for row in np.ndindex(3, 9):
        ids, position = lists[row], p.positions[row]
        want = [4 * g + j for g in ids[ids >= 0] for j in range(4)]
        want += range((position + 1) // 4 * 4, position + 1)
        assert tokens[row].tolist() == want + [-1] * (tokens.shape[2] - len(want))


def test_the_budget_of_the_model():
    p = Index(rows=1, blocks=(600,))
    assert tessera.qsa_select(p.q, p.k).shape == (1, 1, 512)
    assert tessera.qsa_select_tokens(p.q, p.k).shape == (1, 1, 2051)


# ---- Intervals and counts ----


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_agrees_with_the_formula(dtype, variant):
    how = {"backend": "reference"} if variant == "reference" else {}
    p = Index(dtype, rows=40, blocks=(150,))
    rng = np.random.default_rng(1)
    starts, ends = (rng.integers(-3, 155, 40).astype(np.int32) for _ in "se")
    columns = np.arange(150)
    inside = (columns >= starts[:, None]) & (columns < ends[:, None])
    for weights, keys in ((None, p.k[0]), (p.weights[0], p.k[0][:, None])):
        value, size = formula(p.q[0], np.broadcast_to(p.k, (40, 150, 16)), np.full(40, 150), weights)
        with tessera.testing.force_variant("" if how else variant):
            got = tessera.qsa_mqa_prefill(p.q[0], keys, starts, ends, weights=weights, **how)
        assert agrees(got, (np.where(inside, value, -np.inf), size))
    assert tessera.qsa_mqa is tessera.qsa_mqa_prefill
    halved = tessera.qsa_mqa(p.q[0], p.k[0], starts, ends, 8.0, **how)
    assert same_bits(halved, tessera.qsa_mqa(p.q[0], p.k[0], starts, ends, scale=0.125, **how))


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4])
def test_decode_agrees_with_the_formula(dtype, variant, rows):
    how = {"backend": "reference"} if variant == "reference" else {}
    p = Index(dtype, rows=rows, blocks=(140, 9, 133))
    counts = np.array([[n - (rows - 1 - t) for t in range(rows)] for n in p.blocks], np.int32)
    q = p.q[:, 0] if rows == 1 else p.q
    weights = p.weights[:, 0] if rows == 1 else p.weights
    for size in PAGE_SIZES:
        cache, table = p.pages(size)
        for w in (None, weights):
            value, error = formula(
                p.q.reshape(-1, 4, 16),
                np.repeat(p.k, rows, axis=0),
                counts.reshape(-1),
                None if w is None else w.reshape(-1, 4),
            )
            with tessera.testing.force_variant("" if how else variant):
                got = tessera.qsa_mqa_decode(q, cache, table, counts, 150, weights=w, **how)
            assert got.shape == (3 * rows, 150)
            assert np.isneginf(got[:, 140:]).all()
            assert agrees(got[:, :140], (value, error))
    few = tessera.qsa_mqa_decode(q, cache[:, :, 0], table, counts[:, -1].copy(), 20, **how)
    assert few.shape == (3 * rows, 20)


# ---- Kinds and views ----


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind):
    p = Index("bf16")
    options = {n: as_kind(kind, x) if isinstance(x, np.ndarray) else x for n, x in p.options.items()}
    for f in (tessera.qsa_indexer_mqa_score, tessera.qsa_select, tessera.qsa_select_tokens):
        got = f(as_kind(kind, p.q), as_kind(kind, p.k), **options)
        assert isinstance(got, torch.Tensor) == (kind == "torch")
        assert np.array_equal(np.from_dlpack(got) if kind == "jax" else np.asarray(got), f(p.q, p.k, **p.options))
    scores = np.random.default_rng(0).standard_normal((3, 90)).astype(np.float32)
    assert np.array_equal(np.asarray(tessera.topk_blocks(to_torch(scores), 7)), best(scores, 7))


def test_strided_views():
    p = Index("f32")
    q = np.zeros((4, 3, 5, 19), np.float32)[..., 2:-1].transpose(1, 2, 0, 3)
    k = np.zeros((3, 80, 21), np.float32)[:, ::2, 3:-2]
    q[...], k[...] = p.q, p.k
    for f in (tessera.qsa_indexer_mqa_score, tessera.qsa_select):
        assert same_bits(f(q, k, **p.options), f(p.q, p.k, **p.options))
        shared = np.broadcast_to(p.q[:1], p.q.shape)
        assert same_bits(f(shared, k, **p.options), f(np.ascontiguousarray(shared), k, **p.options))


@pytest.mark.parametrize("shape", [(90,), (3, 90), (2, 3, 90), (2, 1, 2, 3, 90), (0, 90), (3, 0)], ids=str)
def test_topk_of_any_shape(shape):
    rng = np.random.default_rng(1)
    scores = rng.standard_normal(shape).astype(np.float32)
    scores[rng.random(shape) < 0.3] = np.nan
    scores[rng.random(shape) < 0.3] = -np.inf
    for k in (1, 8, 100):
        assert np.array_equal(tessera.topk_blocks(scores, k), best(scores, k))
        assert np.array_equal(tessera.topk_blocks(scores, k, backend="reference"), best(scores, k))
    wide = np.repeat(scores, 2, axis=-1)[..., ::2]
    assert np.array_equal(tessera.topk_blocks(wide, 8), best(scores, 8))


# ---- Faults of other implementations ----


def test_invalid_pages_are_masked():
    """ROCm/ATOM#1831: a page of -1 was read as page 0."""
    p = Index(blocks=(40,))
    cache, table = p.pages(8)
    cache[0] = np.nan
    table[table == 0] = 1
    want = tessera.qsa_indexer_mqa_score(p.q, cache, block_table=table, **p.options)
    for bad in BAD_PAGES:
        table[0, 2] = bad
        got = tessera.qsa_indexer_mqa_score(p.q, cache, block_table=table, **p.options)
        assert np.isneginf(got[..., 16:24]).all()
        assert same_bits(np.delete(got, np.s_[16:24], 2), np.delete(want, np.s_[16:24], 2))
        assert not np.isin(np.arange(16, 24), tessera.qsa_select(p.q, cache, block_table=table, **p.options)).any()


def test_idle_batches():
    """sgl-project/sglang#15227: a batch without rows asserted."""
    p = Index()
    q = p.q.reshape(15, 4, 16)
    none = tessera.qsa_select(q[:0], p.k, cu_seqlens_q=np.zeros(4, np.int32))
    assert none.shape == (0, 512)
    scores = tessera.qsa_indexer_mqa_score(q[:8], p.k, cu_seqlens_q=np.array([0, 3, 3, 8], np.int32))
    assert np.isfinite(scores).sum(axis=1).tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert tessera.qsa_indexer_mqa_score(p.q[:0], p.k[:0]).shape == (0, 5, 40)


def test_the_threads_change_no_bit():
    """vllm-project/vllm#54521: the selected set varied from run to run."""
    p = Index("bf16", rows=3, blocks=(3000, 513, 1800), heads=1, dim=8)
    want = tessera.qsa_select(p.q, p.k, **p.options)
    before = tessera.get_num_threads()
    try:
        for threads in (1, 2, 5):
            tessera.set_num_threads(threads)
            assert same_bits(tessera.qsa_select(p.q, p.k, **p.options), want)
    finally:
        tessera.set_num_threads(before)


# ---- screen ----


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_screened_selections_are_the_same(kind: str) -> None:
    rng = np.random.default_rng(5)
    q = as_kind(kind, rng.standard_normal((2, 1, 4, 32)).astype(np.float32))
    k = as_kind(kind, rng.standard_normal((2, 900, 32)).astype(np.float32))
    options = {"budget": 36, "query_positions": np.full((2, 1), 3599, np.int32)}
    screen = tessera.qsa_screen_keys(k)
    assert str(screen[0].dtype).endswith("int8")
    assert [tuple(t.shape) for t in screen] == [(2, 900, 32), (2, 900)]
    for select in (tessera.qsa_select, tessera.qsa_select_tokens):
        assert same_bits(select(q, k, screen=screen, **options), select(q, k, **options))
    part = (screen[0][:, 10:20], screen[1][:, 10:20])
    before = [np.asarray(t).copy() for t in screen]
    part[0][:], part[1][:] = 0, 0
    tessera.qsa_screen_keys(k[:, 10:20], out=part)
    for got, want in zip(screen, before, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_a_screen_is_a_pair_of_int8_and_float32() -> None:
    q, k = np.ones((1, 1, 4, 16), np.float32), np.ones((1, 8, 16), np.float32)
    codes, scales = tessera.qsa_screen_keys(k)
    with pytest.raises(TypeError, match="^qsa_select: screen is no pair"):
        tessera.qsa_select(q, k, screen=codes)
    with pytest.raises(TypeError, match="^qsa_select: screen_codes is float32; expected int8"):
        tessera.qsa_select(q, k, screen=(k, scales))
    with pytest.raises(ValueError, match="^qsa_select: screen_scales .* has size 7"):
        tessera.qsa_select(q, k, screen=(codes, scales[:, 1:]))
    with pytest.raises(TypeError, match="^qsa_screen_keys: keys is int8"):
        tessera.qsa_screen_keys(codes)
