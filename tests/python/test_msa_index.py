"""Block scores and selections of the indexer, in every form of rows and keys; and paged keys of the other selectors."""

import numpy as np
import pytest
import tessera
import tessera.testing
import torch
from sequences import Requests
from tensors import DTYPES, KINDS, as_kind, same_bits, to_torch
from tessera.check.data import packed_keys

scores_of = tessera.msa_block_scores
select = tessera.msa_select
VARIANTS = [name for name, entry in tessera.info()["variants"].items() if entry["available"]]
PAGE_SIZES = [1, 3, 8, 20, 64]


def index(dtype="f32", heads=4, key_heads=1, **sizes):
    """Packed index queries and keys of several requests."""
    return Requests(dtype, hkv=key_heads, group=heads // key_heads, **sizes)


def definition(p, offset=None, reduce_heads=False):
    """f64 [Hi, R, N] by the words of the definition, and the largest sum_d |q_d k_d| of each block."""
    q, k = p.q.astype(np.float64), p.k.astype(np.float64)
    blocks = -(-max(p.keys) // p.block)
    value, magnitude = np.full((q.shape[1], q.shape[0], blocks), -np.inf), np.zeros((q.shape[1], q.shape[0], blocks))
    for b, (rows, keys) in enumerate(zip(p.rows, p.keys, strict=True)):
        first = keys - rows if offset is None else np.broadcast_to(offset, len(p.rows))[b]
        for t, h in np.ndindex(rows, q.shape[1]):
            for n in range(-(-min(keys, max(first + t + 1, 0)) // p.block)):
                seen = np.arange(n * p.block, min((n + 1) * p.block, keys, first + t + 1)) + p.cu_k[b]
                products = k[seen, h if k.shape[1] > 1 else 0] * q[p.cu_q[b] + t, h]
                value[h, p.cu_q[b] + t, n] = products.sum(axis=1).max()
                magnitude[h, p.cu_q[b] + t, n] = np.abs(products).sum(axis=1).max()
    if reduce_heads:
        return value.max(axis=0, keepdims=True), magnitude.max(axis=0, keepdims=True)
    return value, magnitude


def agrees(got, want):
    value, magnitude = want
    got = np.asarray(got).astype(np.float64)
    error = np.where(got == value, 0.0, np.abs(np.where(got == value, 0.0, got) - np.where(got == value, 0.0, value)))
    return got.shape == value.shape and (error <= 1e-4 * magnitude).all()


# ---- What is computed ----


@pytest.mark.parametrize("variant", [*VARIANTS, "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"q_offset": 4}, {"q_offset": np.array([-3, 0, 50, 2], np.int32)}, {"reduce_heads": True}],
    ids=str,
)
def test_scores_agree_with_the_definition(dtype, variant, options):
    how = {"backend": "reference"} if variant == "reference" else {}
    for key_heads in (1, 4):
        p = index(dtype, heads=4, key_heads=key_heads)
        want = definition(p, options.get("q_offset"), options.get("reduce_heads", False))
        with tessera.testing.force_variant("" if how else variant):
            assert agrees(scores_of(p.q, p.k, **p.packed, **options, **how), want)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_where_the_keys_lie_changes_no_bit(dtype, variant):
    p = index(dtype)
    with tessera.testing.force_variant(variant):
        want = [f(p.q, p.k, **p.packed) for f in (scores_of, select)]
        for size in PAGE_SIZES:
            k, _, tables = p.pages(size)
            got = [f(p.q, k, cu_seqlens_q=p.cu_q, block_size=p.block, **tables) for f in (scores_of, select)]
            assert all(same_bits(x, y) for x, y in zip(got, want, strict=True)), size
            k = packed_keys(k)
            got = [f(p.q, k, cu_seqlens_q=p.cu_q, block_size=p.block, **tables) for f in (scores_of, select)]
            assert all(same_bits(x, y) for x, y in zip(got, want, strict=True)), f"packed layout, {size}"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_tables_for_more_keys_than_there_can_be_are_cut_to_the_lengths(backend):
    """A page size and a table whose product is beyond int64: views of one page and one entry."""
    p = index(rows=(2,), keys=(20,))
    k = np.lib.stride_tricks.as_strided(p.k, (1, 1, 1 << 31, 16), (0, 0, 0, 4))
    table = np.broadcast_to(np.zeros((1, 1), np.int32), (1, 1 << 33))
    tables = {"page_table": table, "seqused_k": np.array([20], np.int32), "cu_seqlens_q": p.cu_q}
    scores = scores_of(p.q, k, block_size=8, backend=backend, **tables)
    assert scores.shape == (4, 2, 3)
    assert np.isfinite(scores).all()


def test_each_request_alone_gives_the_same_bits():
    p = index("bf16", rows=(5, 1, 19), keys=(40, 7, 33))
    scores, lists = scores_of(p.q, p.k, **p.packed), select(p.q, p.k, topk=3, **p.packed)
    for b in range(3):
        q, k, *_ = p.of(b)
        rows, blocks = slice(*p.cu_q[b : b + 2]), -(-p.keys[b] // p.block)
        assert same_bits(scores[:, rows, :blocks], scores_of(q, k, block_size=p.block)[0])
        assert np.isneginf(scores[:, rows, blocks:]).all()
        assert same_bits(lists[:, rows], select(q, k, topk=3, block_size=p.block)[0])


@pytest.mark.parametrize("topk", [1, 2, 4, 16])
@pytest.mark.parametrize("reduce_heads", [False, True])
def test_selection_is_the_best_of_the_scores(topk, reduce_heads):
    p = index(rows=(30, 1), keys=(120, 77))
    options = {**p.packed, "reduce_heads": reduce_heads}
    scores = scores_of(p.q, p.k, **options)
    lists = select(p.q, p.k, topk=topk, **options)
    assert lists.shape == (1 if reduce_heads else 4, 31, topk)
    for h, t in np.ndindex(lists.shape[:2]):
        visible = np.flatnonzero(np.isfinite(scores[h, t]))
        own = visible[-1]
        best = sorted(visible, key=lambda n: (n != own, -scores[h, t, n], n))[:topk]
        assert list(lists[h, t]) == sorted(best) + [-1] * (topk - len(best))


def test_short_contexts_select_every_visible_block():
    p = index(rows=(20,), keys=(60,))
    lists = select(p.q, p.k, **p.packed)
    for t in range(20):
        assert list(lists[0, t, :9]) == [*range((40 + t) // 8 + 1), *[-1] * 8][:9]


def test_lists_attend_like_dense_attention_where_all_blocks_are_in():
    p = index(heads=2, key_heads=2, rows=(20, 3), keys=(60, 33), dv=16)
    lists = select(p.q, p.k, **p.packed)
    everything = np.broadcast_to(np.arange(8, dtype=np.int32), (*lists.shape[:2], 8))
    attend = tessera.msa_sparse_attention
    assert same_bits(attend(p.q, p.k, p.v, lists, **p.packed), attend(p.q, p.k, p.v, everything, **p.packed))


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_tensors(kind):
    p = index("bf16")
    want = [f(p.q, p.k, **p.packed) for f in (scores_of, select)]
    packed = {name: as_kind(kind, x) if isinstance(x, np.ndarray) else x for name, x in p.packed.items()}
    for f, x in zip((scores_of, select), want, strict=True):
        got = f(as_kind(kind, p.q), as_kind(kind, p.k), **packed)
        assert isinstance(got, torch.Tensor) == (kind == "torch")
        assert np.array_equal(np.from_dlpack(got) if kind == "jax" else np.asarray(got), x)


def test_strided_views():
    p = index("f32", heads=4, key_heads=4)
    q, k = (np.zeros((x.shape[1], x.shape[0], x.shape[2] + 3), x.dtype)[..., 2:-1].swapaxes(0, 1) for x in (p.q, p.k))
    q[...], k[...] = p.q, p.k
    assert same_bits(scores_of(q, k, **p.packed), scores_of(p.q, p.k, **p.packed))
    assert same_bits(select(to_torch(q), to_torch(k), **{n: x for n, x in p.packed.items() if n == "block_size"},
                            cu_seqlens_q=torch.from_numpy(p.cu_q), cu_seqlens_k=torch.from_numpy(p.cu_k)),
                     select(p.q, p.k, **p.packed))  # fmt: skip


def test_columns_are_the_blocks_of_the_longest_request():
    p = index()
    assert scores_of(p.q, p.k, **p.packed).shape == (4, 25, 5)
    k, _, tables = p.pages(16)
    tables["seqused_k"] = np.array([16, -5, 9, 2**31 - 1], np.int32)  # the last has three entries of its table
    assert scores_of(p.q, k, cu_seqlens_q=p.cu_q, block_size=8, **tables).shape == (
        4,
        25,
        tables["page_table"].size // 2,
    )
    assert scores_of(p.q, p.k, cu_seqlens_q=p.cu_q, cu_seqlens_k=p.cu_k[::-1].copy(), block_size=8).shape == (4, 25, 0)
    assert scores_of(p.q[None, :0], p.k[None], block_size=64).shape == (1, 4, 0, 2)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"cu_seqlens_q": None}, ValueError, "cu_seqlens_q is missing"),
        ({"cu_seqlens_k": None}, ValueError, r"k has 3 axes; expected \[B, Sk"),
        ({"page_table": np.zeros((4, 1), np.int32)}, ValueError, "k has 3 axes"),
        ({"cu_seqlens_k": np.zeros(4, np.int32)}, ValueError, "cu_seqlens_k .*axis 0"),
        ({"cu_seqlens_k": np.zeros(5)}, TypeError, "cu_seqlens_k"),
        ({"q_offset": 1.5}, TypeError, "q_offset"),
        ({"q_offset": np.zeros(3, np.int32)}, ValueError, "q_offset"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"reduce_heads": 1}, TypeError, "reduce_heads"),
        ({"backend": "fast"}, ValueError, "backend"),
        ({"k": np.zeros((99, 2, 16), np.float32)}, ValueError, "k has 2 heads and q has 4"),
        ({"k": np.zeros((99, 1, 16), np.float16)}, TypeError, "k is float16"),
        ({"q": np.zeros((25, 4, 16), np.int32)}, TypeError, "q is int32"),
        ({"q": np.zeros((25, 64), np.float32)}, ValueError, "q has 2 axes"),
    ],
    ids=str,
)
def test_bad_calls(changes, error, message):
    p = index()
    arguments = {"q": p.q, "k": p.k, **p.packed} | changes
    for function in (scores_of, select):
        with pytest.raises(error, match=f"{function.__name__}: {message}"):
            function(arguments["q"], arguments["k"], **{n: x for n, x in arguments.items() if n not in "qk"})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topk": 0}, ValueError, "topk is 0"),
        ({"topk": -1}, ValueError, "topk is -1"),
        ({"topk": 2.0}, TypeError, "topk"),
        ({"local_blocks": -1}, ValueError, "local_blocks is -1"),
        ({"topk": 3, "local_blocks": 2, "init_blocks": 2}, ValueError, "local_blocks 2 and init_blocks 2 .*topk 3"),
    ],
    ids=str,
)
def test_bad_rules(options, error, message):
    p = index()
    with pytest.raises(error, match=f"msa_select: {message}"):
        select(p.q, p.k, **p.packed, **options)


# ---- Faults of other implementations ----


def test_one_list_per_index_head():
    """huggingface/transformers#46762: the maximum over index heads made one list of all."""
    q, k = np.zeros((1, 1, 2, 16), np.float32), np.zeros((1, 20, 1, 16), np.float32)
    q[0, 0, 0, 0] = q[0, 0, 1, 1] = 1
    k[0, 7, 0, 0] = k[0, 11, 0, 1] = 9
    lists = select(q, k, topk=2, block_size=1)[0, :, 0]
    assert lists.tolist() == [[7, 19], [11, 19]]


def test_garbage_behind_the_last_key_of_a_page():
    """vllm-project/vllm-ascend#13391: what lies in the rest of a tail page entered the score."""
    rng = np.random.default_rng(0)
    pages = rng.standard_normal((2, 1, 128, 32), np.float32)
    pages[1, :, 1:] = np.nan
    q = rng.standard_normal((1, 4, 32), np.float32)
    tables = {"page_table": np.array([[0, 1]], np.int32), "seqused_k": np.array([129], np.int32)}
    scores = scores_of(q, pages, cu_seqlens_q=np.array([0, 1], np.int32), **tables)
    keys = pages.reshape(1, 256, 1, 32)[:, :129]
    assert same_bits(scores, scores_of(q[None], keys)[0])
    assert np.isfinite(scores).all()


def test_more_topk_than_blocks():
    """vllm-project/vllm-ascend#13177."""
    p = index(rows=(2,), keys=(24,))
    assert select(p.q, p.k, **p.packed)[0, 1].tolist() == [0, 1, 2, *[-1] * 13]


def test_ties_go_to_the_lowest_ids_for_any_number_of_threads():
    """hw-native-sys/pypto-lib#368: ties differed from run to run, and reached into the padding."""
    q, k = np.ones((1, 1, 4, 16), np.float32), np.ones((1, 640, 1, 16), np.float32)
    before = tessera.get_num_threads()
    try:
        for threads in (1, 2, 8):
            tessera.set_num_threads(threads)
            assert select(q, k, topk=5, block_size=16)[0, :, 0].tolist() == [[0, 1, 2, 3, 39]] * 4
    finally:
        tessera.set_num_threads(before)


def test_topk_of_one_is_the_own_block():
    """MoonshotAI/MoBA#26, fla-org/flash-linear-attention#845: it was full causal attention."""
    p = index(rows=(300,), keys=(300,), block=16)
    assert select(p.q, p.k, topk=1, **p.packed)[2, :, 0].tolist() == [t // 16 for t in range(300)]


@pytest.mark.parametrize("pages", [257, 1025])
def test_wide_tables(pages):
    """vllm-project/vllm-ascend#15918, ggml-org/llama.cpp#27021: tables wider than 256, more than 1,024 blocks."""
    k = np.zeros((pages, 1, 8, 16), np.float32)
    k[pages - 2, 0, 5] = 3
    q = np.ones((1, 1, 16), np.float32)
    tables = {"page_table": np.arange(pages, dtype=np.int32)[None], "seqused_k": np.array([pages * 8], np.int32)}
    lists = select(q, k, topk=2, block_size=8, cu_seqlens_q=np.array([0, 1], np.int32), **tables)
    assert lists[0, 0].tolist() == [pages - 2, pages - 1]


def test_scores_one_ulp_apart_at_the_cut():
    """MiniMax-AI/MSA#6: exact order, however near."""
    k = np.ones((1, 20, 1, 1), np.float32)
    k[0, 13] = np.nextafter(np.float32(1), np.float32(2))
    q = np.ones((1, 1, 1, 1), np.float32)
    assert select(q, k, topk=3, block_size=1)[0, 0, 0].tolist() == [0, 13, 19]


def test_a_prefix_that_is_cached():
    """ROCm/ATOM#1551: rows were counted from the lengths of keys."""
    p = index(rows=(1, 3), keys=(200, 129))
    assert agrees(scores_of(p.q, p.k, **p.packed), definition(p))


@pytest.mark.parametrize("keys", [1, 127, 128, 129, 507])
def test_odd_lengths(keys):
    """XunhaoLai/native-sparse-attention-triton#1, lucidrains/native-sparse-attention-pytorch#15."""
    p = index(rows=(min(keys, 9),), keys=(keys,), block=128)
    assert agrees(scores_of(p.q, p.k, **p.packed), definition(p))


# ---- Paged keys of the training-free selectors ----


@pytest.mark.parametrize("function", [tessera.moba_select, tessera.mass_select])
def test_selectors_read_pages(function):
    p = Requests("bf16", rows=(30, 30), keys=(120, 120))
    q, k = p.q.reshape(2, 30, 6, 16), p.k.reshape(2, 120, 2, 16)
    want = function(q, k, topk=3, block_size=8, block_q=4)
    for size in PAGE_SIZES:
        pages, _, tables = p.pages(size)
        assert same_bits(function(q, pages, topk=3, block_size=8, block_q=4, **tables), want), size
    tables["seqused_k"] = np.array([120, 64], np.int32)
    shorter = function(q, pages, topk=3, block_size=8, block_q=4, **tables)
    assert same_bits(shorter[0], want[0])
    assert same_bits(shorter[1:], function(q[1:], k[1:, :64], topk=3, block_size=8, block_q=4))
    with pytest.raises(ValueError, match="seqused_k"):
        function(q, pages, topk=3, page_table=tables["page_table"])
