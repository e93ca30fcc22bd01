"""Index formats: every conversion against sets of Python, and attention before and after it."""

import itertools

import numpy as np
import pytest
import tessera
import torch
from tensors import Problem, as_kind, same_bits, to_torch
from tessera.formats import (
    block_mask_to_lists,
    bsr_to_lists,
    clean_lists,
    csr_to_packed,
    lists_to_block_mask,
    lists_to_bsr,
    lists_to_packed,
    packed_to_csr,
    packed_to_lists,
    share_lists,
    spread_lists,
)
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

N = 6
SHAPES = [(2, 3, 7, 4), (1, 1, 1, 9), (3, 2, 5, 0), (0, 2, 4, 3), (2, 2, 0, 3), (2, 4, 9), (1, 3, 0), (0, 3, 2)]
SEEDS = range(4)


def messy(shape, blocks=N, seed=0):
    """Random lists with repeated ids and with every way in which an id can be none."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, blocks + 1, shape).astype(np.int32)
    ids[rng.random(shape) < 0.1] = rng.choice([-(2**31), 2**31 - 1])
    ids[rng.random(shape[:-1]) < 0.1] = -1
    return ids


def limit(blocks, b):
    return blocks if np.ndim(blocks) == 0 else blocks[b]


def sets(lists, blocks=N):
    """{(b, ..., row): the blocks of its list}."""
    lists = np.asarray(lists)
    return {at: {int(x) for x in lists[at] if 0 <= x < limit(blocks, at[0])} for at in np.ndindex(lists.shape[:-1])}


def assert_tidy(lists, width=None):
    """Ascending, left-packed, -1 behind, and as wide as said or needed."""
    lists = np.asarray(lists)
    assert lists.dtype == np.int32
    for row in lists.reshape(int(np.prod(lists.shape[:-1])), lists.shape[-1]):
        kept = row[row >= 0]
        assert list(row) == [*sorted(set(kept)), *[-1] * (len(row) - len(kept))]
    longest = (lists >= 0).sum(-1).max(initial=0)
    assert lists.shape[-1] == (longest if width is None else width)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_clean(shape, seed):
    ids = messy(shape, seed=seed)
    per_request = np.random.default_rng(seed).integers(0, N + 1, shape[0])
    for blocks in (N, per_request, 0):
        for width in (None, shape[-1] + 2):
            clean = clean_lists(ids, blocks, width=width)
            assert_tidy(clean, width)
            assert sets(clean, blocks) == sets(ids, blocks)
            assert np.array_equal(clean_lists(clean, blocks, width=clean.shape[-1]), clean)


# ---- One list for more, or fewer, queries and heads ----


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block_q", [1, 2, 7, 100])
def test_the_union_of_lists(shape, seed, block_q):
    ids = messy(shape, seed=seed)
    lists = ids if ids.ndim == 4 else ids[:, None]
    before = sets(lists)
    total = lists.shape[1]
    for heads in {None, *(h for h in (1, total) if ids.ndim == 4)}:
        shared = share_lists(ids, N, block_q=block_q, heads=heads, union=True)
        assert_tidy(shared)
        group = total // (heads or total)
        expected = {}
        for (b, h, i), blocks in before.items():
            at = (b, h // group, i // block_q) if ids.ndim == 4 else (b, i // block_q)
            expected[at] = expected.get(at, set()) | blocks
        assert sets(shared) == expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("block_q", [1, 3, 7])
def test_spreading_and_sharing_lead_back(shape, block_q):
    ids = messy(shape)
    for last in range(min(block_q, 3)):  # ragged ends
        queries = max(0, shape[-2] * block_q - last)
        heads = 2 * shape[1] if len(shape) == 4 else None
        tokens = spread_lists(ids, queries, block_q=block_q, heads=heads)
        assert tokens.shape == (*shape[:1], *((heads,) if heads else ()), queries, shape[-1])
        before, after = sets(ids), sets(tokens)
        for (b, *h, i), blocks in after.items():
            assert blocks == before[(b, *(x // 2 for x in h), i // block_q)]
        back = share_lists(tokens, N, block_q=block_q, heads=shape[1] if heads else None)
        assert np.array_equal(back, clean_lists(ids, N))


def test_one_list_for_all_heads_becomes_one_per_head_and_back():
    ids = messy((2, 5, 4))
    tokens = spread_lists(ids, 13, block_q=3, heads=4)
    assert tokens.shape == (2, 4, 13, 4)
    assert np.array_equal(share_lists(tokens, N, block_q=3, heads=1)[:, 0], clean_lists(ids, N))


def test_lists_that_differ_are_not_shared_unasked():
    same = np.array([[[[0, 2, -1], [2, 0, 2], [2, 9, 0]]] * 2], np.int32)  # as sets, all equal
    assert share_lists(same, 3, block_q=3, heads=1).tolist() == [[[[0, 2]]]]
    other = same.copy()
    other[0, 1, 2] = [0, -1, -1]
    assert share_lists(other, 3, block_q=2).shape == (1, 2, 2, 2)
    with pytest.raises(ValueError, match=r"share_lists: lists 0 to 2, heads 1 to 1 of request 0 differ; union=True"):
        share_lists(other, 3, block_q=3)
    with pytest.raises(ValueError, match=r"lists 2 to 2, heads 0 to 1 of request 0 differ"):
        share_lists(other, 3, block_q=2, heads=1)
    with pytest.raises(ValueError, match=r"lists 0 to 1, heads 0 to 0 of request 1 differ"):
        share_lists(np.array([[[1], [1]], [[1], [-1]]], np.int32), 3, block_q=2)
    assert share_lists(other, 3, block_q=3, union=True, width=4).tolist() == [[[[0, 2, -1, -1]], [[0, 2, -1, -1]]]]


# ---- Packed rows and CSR ----

LENGTHS = [[3, 0, 5, 1], [0, 0], [], [7], [0, 2, 0]]


def cumulative(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("width", [0, 3])
def test_packed(lengths, width):
    cu = cumulative(lengths)
    packed = messy((2, sum(lengths), width))
    lists = packed_to_lists(packed, cu)
    assert lists.shape == (len(lengths), 2, max(lengths, default=0), width)
    for b, n in enumerate(lengths):
        assert np.array_equal(lists[b, :, :n], packed[:, cu[b] : cu[b + 1]])
        assert (lists[b, :, n:] == -1).all()
    assert np.array_equal(lists_to_packed(lists, cu), packed)
    longer = np.concatenate([lists, lists], axis=2)
    assert np.array_equal(lists_to_packed(longer, cu), packed)


def csr_by_hand(packed, cu, blocks):
    """The definition, entry by entry."""
    requests = range(len(cu) - 1)
    levels = max((limit(blocks, b) for b in requests), default=0)
    rows = [(n, b) for n in range(levels) for b in requests if n < limit(blocks, b)]
    row_ptr = np.zeros((len(packed), len(rows) + 1), np.int32)
    q_indices = np.full((len(packed), packed.shape[1] * packed.shape[2]), -1, np.int32)
    for h, lists in enumerate(packed):
        queries = [[t - cu[b] for t in range(cu[b], cu[b + 1]) if n in lists[t]] for n, b in rows]
        row_ptr[h, 1:] = np.cumsum([len(q) for q in queries])
        flat = list(itertools.chain(*queries))
        q_indices[h, : len(flat)] = flat
    return row_ptr, q_indices


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("width", [0, 1, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_csr(lengths, width, seed):
    rng = np.random.default_rng(seed)
    cu = cumulative(lengths)
    packed = messy((2, sum(lengths), width), seed=seed)
    for blocks in (N, rng.integers(0, N + 1, len(lengths))):
        csr = packed_to_csr(packed, cu, blocks)
        for got, expected in zip(csr, csr_by_hand(packed, cu, blocks), strict=True):
            assert got.dtype == np.int32
            assert np.array_equal(got, expected)
        per_token = np.repeat(np.broadcast_to(blocks, len(lengths)), lengths)
        expected = clean_lists(packed.swapaxes(0, 1)[:, :, None], per_token, width=width)[:, :, 0].swapaxes(0, 1)
        assert np.array_equal(csr_to_packed(*csr, cu, blocks, width=width), expected)
        assert_tidy(csr_to_packed(*csr, cu, blocks))
        assert np.array_equal(packed_to_csr(expected, cu, blocks)[1], csr[1])


def test_csr_worked_by_hand():
    packed = np.array([[[0, 1], [1, 1], [0, -1], [2, 0]]], np.int32)  # requests of 2 tokens and 2 blocks, 2 and 3
    row_ptr, q_indices = packed_to_csr(packed, np.array([0, 2, 4], np.int32), np.array([2, 3]))
    # block 0 of request 0: token 0; of request 1: tokens 0, 1; block 1: tokens 0, 1; none; block 2 of request 1: token 1
    assert row_ptr.tolist() == [[0, 1, 3, 5, 5, 6]]
    assert q_indices.tolist() == [[0, 0, 1, 0, 1, 1, -1, -1]]


def test_csr_from_elsewhere():
    """Any order, repetitions, tokens that do not exist, room behind the last row."""
    row_ptr = np.array([[0, 4, 6]], np.int32)
    q_indices = np.array([[1, 0, 1, 7, -1, 1, 0, 0]], np.int32)
    packed = csr_to_packed(row_ptr, q_indices, np.array([0, 2], np.int32), 2)
    assert packed.tolist() == [[[0, -1], [0, 1]]]


# ---- BlockMask ----


def lists_of(mask):
    return sets(mask, 10**6)


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 2, 5, 4), (1, 3, 5, 0)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys", "offset"), [(40, 48, None), (37, 45, None), (33, 41, -9), (40, 43, 2)])
def test_block_mask(shape, causal, queries, keys, offset):
    ids = messy(shape)
    options = {"block_size": 8, "causal": causal, "q_offset": offset}
    mask = lists_to_block_mask(ids, queries, keys, **options)
    heads = shape[1] if len(shape) == 4 else 1
    assert mask.shape == (shape[0], heads, queries, keys)
    assert mask.BLOCK_SIZE == (8, 8)
    lists = block_mask_to_lists(mask)
    assert torch.equal(lists.reshape(*shape[:-1], -1), torch.from_numpy(clean_lists(ids, N)))
    assert block_mask_to_lists(mask, width=N).shape[-1] == N

    # The parts are those that torch derives from the same mask_mod, but for listed blocks that nobody sees.
    torchs = create_block_mask(mask.mask_mod, shape[0], heads, queries, keys, device="cpu", BLOCK_SIZE=8)
    last = keys - queries if offset is None else offset
    for name in ("kv", "full_kv"):
        ours, theirs = ({
            at: set(getattr(m, f"{name}_indices")[at][: getattr(m, f"{name}_num_blocks")[at]].tolist())
            for at in np.ndindex(shape[0], heads, -(-queries // 8))
        } for m in (mask, torchs))  # fmt: skip
        for at, blocks in ours.items():
            visible = (min(queries, 8 * at[2] + 8) - 1 + last) // 8 if causal else N
            assert {n for n in blocks if n <= visible} == theirs[at]
    assert_tidy(block_mask_to_lists(torchs))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"q_offset": np.array([20, 3], np.int32)}], ids=str)
def test_flex_attention_under_the_block_mask(per_head, options):
    p = Problem("f32", dv=16, per_head=per_head)
    mask = lists_to_block_mask(p.ids, 37, 53, block_size=8, heads=4 if per_head else None, **options)
    q, k, v = (to_torch(x).transpose(1, 2) for x in (p.q, p.k, p.v))
    expected = flex_attention(q, k, v, block_mask=mask, enable_gqa=True).transpose(1, 2)
    out = tessera.block_sparse_gqa_prefill(*p.inputs, block_size=8, **options)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5, atol=1e-5)
    lists = block_mask_to_lists(mask)
    assert lists.shape[1] == (4 if per_head else 1)
    lists = share_lists(lists, 7, heads=2) if per_head else lists[:, 0]
    again = tessera.block_sparse_gqa_prefill(*map(to_torch, (p.q, p.k, p.v)), lists, block_size=8, **options)
    assert same_bits(
        again, tessera.block_sparse_gqa_prefill(p.q, p.k, p.v, clean_lists(p.ids, 7), block_size=8, **options)
    )


# ---- BSR ----


def torch_bsr(crow, col, values, size):
    """torch checks that the indices are what it takes for BSR."""
    return torch.sparse_bsr_tensor(to_torch(crow), to_torch(col), values, size, check_invariants=True)


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
@pytest.mark.parametrize("shape", [(5, 4), (1, 3), (4, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_bsr_of_one_matrix(shape, seed):
    ids = messy(shape, seed=seed)
    crow, col = lists_to_bsr(ids, N)
    assert crow.dtype == col.dtype == np.int32
    clean = clean_lists(ids[None], N)[0]
    assert np.array_equal(bsr_to_lists(crow, col, N), clean)
    assert np.array_equal(
        bsr_to_lists(crow.astype(np.int64), col.astype(np.int64), N, width=9)[:, : clean.shape[1]], clean
    )
    if shape[0]:
        values = torch.ones(len(col), 2, 3)
        dense = torch_bsr(crow, col, values, (2 * shape[0], 3 * N)).to_dense()
        for i, blocks in sets(clean).items():
            rows = dense[2 * i[0] : 2 * i[0] + 2].reshape(2, N, 3)
            assert {n for n in range(N) if rows[:, n].any()} == blocks
            assert rows.sum() == 6 * len(blocks)


def test_bsr_of_a_batch():
    rng = np.random.default_rng(0)
    ids = np.sort(rng.permuted(np.tile(np.arange(N, dtype=np.int32), (2, 3, 4, 1)), axis=-1)[..., :2], axis=-1)
    crow, col = lists_to_bsr(ids, N)
    assert crow.shape == (2, 3, 5)
    assert col.shape == (2, 3, 8)
    torch_bsr(crow, col, torch.ones(2, 3, 8, 1, 1), (2, 3, 4, N))
    assert np.array_equal(bsr_to_lists(crow, col, N), ids)
    assert [x.shape for x in lists_to_bsr(ids[:0], N)] == [(0, 3, 5), (0, 3, 0)]
    ids[1, 2, 3, 1] = -1
    with pytest.raises(ValueError, match="lists_to_bsr: the matrices of lists hold 7 to 8 blocks.* one by one"):
        lists_to_bsr(ids, N)
    assert lists_to_bsr(ids[1, 2], N)[1].shape == (7,)


def test_bsr_from_elsewhere():
    crow, col = np.array([0, 3, 5], np.int32), np.array([2, 0, 2, -1, 9], np.int32)
    assert bsr_to_lists(crow, col, 3).tolist() == [[0, 2], [-1, -1]]


# ---- Attention ----


def test_attention_over_per_token_lists_of_all_formats():
    """Three requests of different lengths; per token and KV head; through every format and back."""
    lengths, keys = [9, 0, 14], [30, 8, 14]
    cu, blocks = cumulative(lengths), np.array([-(-n // 4) for n in keys])
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, s, h, 16), np.float32) for s, h in ((23, 4), (52, 2), (52, 2)))
    starts = cumulative(keys)
    packed = messy((2, 23, 5), blocks=8)

    def attend(lists):
        """Per request, from lists [B, Hkv, Sq, W]."""
        out = np.zeros_like(q)
        for b, n in enumerate(lengths):
            rows, kv = slice(cu[b], cu[b + 1]), slice(starts[b], starts[b + 1])
            out[:, rows] = tessera.block_sparse_gqa_prefill(
                q[:, rows], k[:, kv], v[:, kv], lists[b : b + 1, :, :n], block_size=4, block_q=1
            )
        return out

    expected = attend(packed_to_lists(packed, cu))
    csr = packed_to_csr(packed, cu, blocks)
    for same in (packed, lists_to_packed(packed_to_lists(packed, cu), cu), csr_to_packed(*csr, cu, blocks)):
        rows = {"cu_seqlens_q": cu, "cu_seqlens_k": starts, "block_size": 4}
        assert same_bits(tessera.msa_sparse_attention(q[0], k[0], v[0], same, **rows), expected[0])
    assert same_bits(attend(packed_to_lists(csr_to_packed(*csr, cu, blocks), cu)), expected)
    assert same_bits(attend(clean_lists(packed_to_lists(packed, cu), blocks)), expected)
    lists = packed_to_lists(packed, cu)
    one_by_one = np.full((3, 2, 14, 9), -1, np.int32)
    for b, h in np.ndindex(3, 2):
        one_by_one[b, h] = bsr_to_lists(*lists_to_bsr(lists[b, h], blocks[b]), blocks[b], width=9)
    assert same_bits(attend(one_by_one), expected)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_attention_over_shared_lists_is_that_over_a_list_per_token(kind):
    p = Problem("bf16")
    q, k, v, ids = p.inputs_as(kind)
    shared = tessera.block_sparse_gqa_prefill(q, k, v, clean_lists(ids, 7), block_size=8)
    tokens = spread_lists(ids, 37, block_q=8, heads=2)
    per_token = tessera.block_sparse_gqa_prefill(q, k, v, tokens, block_size=8, block_q=1)
    assert same_bits(per_token, shared)
    back = share_lists(tokens, 7, block_q=8, heads=1)[:, 0]
    assert same_bits(tessera.block_sparse_gqa_prefill(q, k, v, back, block_size=8), shared)


# ---- Kinds and complaints ----


def test_kinds():
    lists = messy((2, 2, 4, 3))
    cu = cumulative([4, 4])
    for kind, result in (("numpy", np.ndarray), ("torch", torch.Tensor), ("dlpack", np.ndarray)):
        x = as_kind(kind, lists)
        packed = lists_to_packed(x, as_kind(kind, cu))
        csr = packed_to_csr(packed, as_kind(kind, cu), as_kind(kind, np.array([N, N])))
        bsr = lists_to_bsr(as_kind(kind, lists[0, 0]), N)
        for got in (
            packed, *csr, *bsr, packed_to_lists(packed, cu), csr_to_packed(*csr, cu, N), bsr_to_lists(*bsr, N),
            clean_lists(x, N), share_lists(x, N, union=True, block_q=2), spread_lists(x, 8, block_q=2),
        ):  # fmt: skip
            assert isinstance(got, result)
        assert isinstance(block_mask_to_lists(lists_to_block_mask(x, 4, 6, block_size=1)), torch.Tensor)


def test_views_are_taken_as_they_lie():
    big = messy((2, 2, 9, 8))
    view = big[:, ::-1, 1::2, ::3]
    assert np.array_equal(clean_lists(view, N), clean_lists(view.copy(), N))
    tensor = torch.from_numpy(big).transpose(1, 2)
    assert torch.equal(clean_lists(tensor, N), clean_lists(tensor.contiguous(), N))


four = np.zeros((2, 2, 3, 4), np.int32)
three = np.zeros((2, 3, 4), np.int32)
cu3 = np.array([0, 1, 3], np.int32)
BAD = [
    (lambda: clean_lists(four.astype(np.int64), 4), TypeError, "clean_lists: lists is int64; expected int32"),
    (lambda: clean_lists(four[0, 0], 4), ValueError, r"clean_lists: lists has 2 axes; expected \[B, nQ, W\] or"),
    (lambda: clean_lists(four, 4.0), TypeError, "clean_lists: num_blocks is float64"),
    (
        lambda: clean_lists(four, np.zeros(3, np.int32)),
        ValueError,
        r"num_blocks has shape \(3,\); expected an int or \[2\]",
    ),
    (lambda: clean_lists(four, -1), ValueError, "num_blocks is -1"),
    (lambda: clean_lists(four, 4, width=0), ValueError, "clean_lists: width is 0; a list has 1 blocks"),
    (lambda: share_lists(four, 4, block_q=0), ValueError, "share_lists: block_q is 0"),
    (lambda: share_lists(four, 4, heads=0), ValueError, "heads is 0; expected a divisor of the 2 heads"),
    (lambda: share_lists(four, 4, heads=3), ValueError, "heads is 3"),
    (lambda: share_lists(three, 4, heads=2), ValueError, "heads is 2; expected a divisor of the 1 heads"),
    (lambda: spread_lists(four, 7, block_q=2), ValueError, "spread_lists: lists has 3 lists per request for 7 queries"),
    (lambda: spread_lists(four, 0, block_q=0), ValueError, "block_q 0"),
    (lambda: spread_lists(four, 3, block_q=1, heads=3), ValueError, "heads is 3; expected a multiple of the 2 heads"),
    (lambda: lists_to_packed(three, cu3), ValueError, r"lists_to_packed: lists has 3 axes; expected \[B, Hkv, Sq, W\]"),
    (lambda: lists_to_packed(four, cu3[:2]), ValueError, "cu_seqlens_q has 1 requests of up to 1 tokens"),
    (lambda: lists_to_packed(four, cu3 * 4), ValueError, "2 requests of up to 8 tokens"),
    (
        lambda: packed_to_lists(three, cu3[:2]),
        ValueError,
        "packed_to_lists: cu_seqlens_q ends with 1; packed has 3 tokens",
    ),
    (lambda: packed_to_lists(three, cu3[:0]), ValueError, "cu_seqlens_q does not start with 0 or decreases"),
    (lambda: packed_to_lists(three, cu3 + 1), ValueError, "does not start with 0"),
    (lambda: packed_to_lists(three, cu3[[0, 2, 1]]), ValueError, "decreases"),
    (lambda: packed_to_lists(three, cu3.astype(np.int64)), TypeError, "cu_seqlens_q is int64"),
    (
        lambda: packed_to_csr(four, cu3, 4),
        ValueError,
        r"packed_to_csr: packed has 4 axes; expected \[Hkv, total_q, W\]",
    ),
    (
        lambda: csr_to_packed(three[0], cu3[None], cu3, 4),
        ValueError,
        r"csr_to_packed: row_ptr has shape \(3, 4\); expected \(1, 9\)",
    ),
    (lambda: csr_to_packed(cu3[None], cu3[None, :2], cu3, 1), ValueError, "row_ptr does not rise from 0 to at most 2"),
    (lambda: csr_to_packed(cu3[None] + 1, cu3[None], cu3, 1), ValueError, "row_ptr does not rise"),
    (lambda: csr_to_packed(cu3[None, ::-1], cu3[None], cu3, 1), ValueError, "row_ptr does not rise"),
    (lambda: lists_to_block_mask(four, 5, 8, block_size=2, heads=3), ValueError, "lists_to_block_mask: heads is 3"),
    (
        lambda: lists_to_block_mask(four, 7, 8, block_size=2),
        ValueError,
        "3 lists per request for 7 queries and block_q 2",
    ),
    (lambda: lists_to_block_mask(four, 5, 8, block_size=0), ValueError, "block_size is 0"),
    (lambda: bsr_to_lists(cu3, four[0, 0], 3), ValueError, "bsr_to_lists: col_indices has 2 axes"),
    (lambda: bsr_to_lists(cu3, cu3[:2], 3), ValueError, "crow_indices does not rise from 0 to 2"),
    (
        lambda: bsr_to_lists(three[0], three[0, :2], 3),
        ValueError,
        r"crow_indices has shape \(3, 4\) and col_indices \(2, 4\)",
    ),
    (lambda: bsr_to_lists(cu3.astype(np.int16), cu3, 3), TypeError, "crow_indices is int16; expected int32 or int64"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[2])
def test_complaints(case):
    call, error, message = case
    with pytest.raises(error, match=message):
        call()
