"""MATE's QSA entry points: signatures, defaults, backends and refusals as documented, and no limits of its hardware."""

import inspect

import pytest
import tessera
import torch
from tensors import same_bits
from tessera.compat import mate

INTERVALS = "(q, k, row_starts, row_ends, score_scale=None, *, scale=None, backend='tilelang')"
SIGNATURES = {
    "qsa_indexer_mqa_score": "(q_idx, block_keys, *, block_table=None, page_size=None, cu_seqlens_q=None, "
    "token_to_req=None, num_requests=None, query_positions=None, seq_lens_q=None, block_size=4, scale=None, "
    "score_scale=None, backend='tilelang')",
    "qsa_mqa": INTERVALS,
    "qsa_mqa_prefill": INTERVALS,
    "qsa_mqa_decode": "(q, k_cache, page_table, context_lens, max_model_len, score_scale=None, *, scale=None, "
    "backend='tilelang')",
    # torch.bfloat16 by name: torch is not imported for it.
    "qsa_sparse_attention": "(query, key, value, token_indices=None, *, block_indices=None, cu_seqlens_q=None, "
    "token_to_req=None, num_requests=None, cu_seqlens_k=None, seq_lens_q=None, seq_lens_k=None, query_positions=None, "
    "block_table=None, page_size=None, scale=None, gate=None, num_splits=None, return_lse=False, backend='tilelang', "
    "warp_specialized=False, assume_compact_blocks=False, out=None, selected_kv_indices=None, softmax_scale=None, "
    "k_scale=1.0, v_scale=1.0, compute_dtype='torch.bfloat16', lse=None)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    signature = inspect.signature(getattr(mate, name))
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    assert str(signature.replace(parameters=bare, return_annotation=signature.empty)) == SIGNATURES[name]
    assert set(SIGNATURES) == set(mate.__all__)


def tensors(heads=4, dim=128, keys=40):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(s, generator=generator).bfloat16() for s in ((2, 12, heads, dim), (2, keys, dim)))
    return q, k


def documented(q, k, positions, scale):
    """The sum of head-wise ReLU dot products, and -inf for a block whose last token is not visible."""
    scores = scale * torch.einsum("bqhd,bnd->bqhn", q.double(), k.double()).relu().sum(2)
    return scores.masked_fill(4 * torch.arange(k.shape[1]) + 3 > positions[..., None], -torch.inf).float()


@pytest.mark.parametrize("backend", ["tilelang", "reference"])
@pytest.mark.parametrize(("options", "scale"), [({}, 128**-0.5), ({"scale": 2.0}, 2), ({"score_scale": 4}, 0.25)])
def test_scores(backend, options, scale):
    q, k = tensors()
    positions = torch.arange(12, dtype=torch.int32).repeat(2, 1) * 13
    got = mate.qsa_indexer_mqa_score(q, k, query_positions=positions, backend=backend, **options)
    assert got.shape == (2, 12, 40)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, documented(q, k, positions, scale), rtol=1e-4, atol=1e-3)
    inferred = mate.qsa_indexer_mqa_score(q, k, backend=backend)
    assert torch.isfinite(inferred).sum(-1).tolist() == [[(t + 1) // 4 for t in range(12)]] * 2
    lengths = torch.tensor([12, 5], dtype=torch.int32)
    padded = mate.qsa_indexer_mqa_score(q, k, query_positions=positions, seq_lens_q=lengths, backend=backend, **options)
    assert same_bits(padded[0], got[0])
    assert same_bits(padded[1, :5], got[1, :5])
    assert torch.isneginf(padded[1, 5:]).all()


@pytest.mark.parametrize("backend", ["tilelang", "reference"])
def test_intervals_and_counts(backend):
    q, k = tensors()
    starts = torch.arange(12, dtype=torch.int32)
    got = mate.qsa_mqa(q[0], k[0], starts, 3 * starts, 4.0, backend=backend)
    want = documented(q[:1], k[:1], torch.full((1, 12), 1000), 0.25)[0]
    column = torch.arange(40)
    outside = (column < starts[:, None]) | (column >= 3 * starts[:, None])
    torch.testing.assert_close(got, want.masked_fill(outside, -torch.inf), rtol=1e-4, atol=1e-3)

    cache = k.reshape(10, 8, 1, 128)
    table = torch.tensor([[0, 1, 2, 3, 4], [5, 6, -1, 8, 9]], dtype=torch.int32)
    lens = torch.tensor([33, 40], dtype=torch.int32)
    for rows in (q[:, 0], q[:, :1]):
        got = mate.qsa_mqa_decode(rows, cache, table, lens, 48, backend=backend)
        assert got.shape == (2, 48)
        want = documented(q[:, :1], k, torch.full((2, 1), 1000), 128**-0.5)[:, 0]
        want[0, 33:] = want[1, 16:24] = -torch.inf
        torch.testing.assert_close(got[:, :40], want, rtol=1e-4, atol=1e-3)
        assert torch.isneginf(got[:, 40:]).all()


def test_no_limits_of_the_hardware():
    q, k = tensors(heads=3, dim=24)
    want = tessera.qsa_indexer_mqa_score(q, k)
    odd = torch.zeros(2, 12, 3, 29, dtype=q.dtype)[..., 3:-2]
    odd[...] = q
    assert same_bits(mate.qsa_indexer_mqa_score(odd, k), want)
    packed = mate.qsa_indexer_mqa_score(q.reshape(24, 3, 24), k, cu_seqlens_q=torch.tensor([0, 12, 24]).int())
    assert same_bits(packed.reshape(want.shape), want)
    table = torch.arange(16, dtype=torch.int32).reshape(2, 8)
    paged = mate.qsa_indexer_mqa_score(q, k.reshape(16, 5, 24), block_table=table, page_size=5, num_requests=2)
    assert same_bits(paged, want)
    lens = torch.tensor([40, 7], dtype=torch.int32)
    assert mate.qsa_mqa_decode(q, k.reshape(16, 5, 24), table, lens, 40).shape == (24, 40)


def test_backends():
    q, k = tensors()
    rows, table, lens = torch.zeros(12).int(), torch.zeros(2, 1).int(), torch.zeros(2).int()
    for backend in ("auto", "native", "cuda", None, 1):
        calls = {
            "qsa_indexer_mqa_score": lambda b=backend: mate.qsa_indexer_mqa_score(q, k, backend=b),
            "qsa_mqa_prefill": lambda b=backend: mate.qsa_mqa(q[0], k[0], rows, rows, backend=b),
            "qsa_mqa_decode": lambda b=backend: mate.qsa_mqa_decode(q, k[:, None], table, lens, 8, backend=b),
            "qsa_sparse_attention": lambda b=backend: mate.qsa_sparse_attention(q, k, k, backend=b),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"{name}: backend is {backend!r}; expected 'tilelang'"):
                call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale": 1.0, "score_scale": 1.0}, ValueError, "exclude each other"),
        ({"score_scale": 0.0}, ValueError, "score_scale is 0.0"),
        ({"scale": -1.0}, ValueError, "scale is -1.0"),
        ({"query_positions": torch.zeros(2, 12)}, TypeError, "query_positions is float32"),
        ({"query_positions": torch.zeros(2, 12).long()}, TypeError, "query_positions is int64"),
        ({"query_positions": torch.zeros(2, 11).int()}, ValueError, "query_positions"),
        ({"seq_lens_q": torch.zeros(3).int()}, ValueError, "seq_lens_q"),
        ({"cu_seqlens_q": torch.zeros(3).int()}, ValueError, "cu_seqlens_q .*packed"),
        ({"page_size": 8}, ValueError, "page_size"),
        ({"num_requests": 3}, ValueError, "num_requests is 3"),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["tilelang", "reference"])
def test_refusals(options, error, message, backend):
    q, k = tensors()
    with pytest.raises(error, match=f"qsa_indexer_mqa_score: .*{message}"):
        mate.qsa_indexer_mqa_score(q, k, backend=backend, **options)
    assert torch.isfinite(mate.qsa_indexer_mqa_score(q, k, backend=backend)).any()


# ---- Attention -----------------------------------------------------------------------------------------------------------


def attention(dtype=torch.bfloat16):
    """24 heads of 256 over 2, two requests of 60 tokens of which the last 5 attend, the gate and lists."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, gate = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((2, 5, 24, 256), (2, 60, 2, 256), (2, 60, 2, 256), (2, 5, 24, 256))
    )
    tokens = torch.randint(-1, 60, (2, 5, 35), generator=generator, dtype=torch.int32)
    return q, k, v, gate, tokens


def documented_attention(q, k, v, tokens):
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:3], -torch.inf, dtype=torch.float64)
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            ids = tokens[b, t][(tokens[b, t] >= 0) & (tokens[b, t] <= k.shape[1] - q.shape[1] + t)].long()
            keys, values = (x[b, ids].double().repeat_interleave(12, 1) for x in (k, v))
            scores = torch.einsum("hd,nhd->hn", q[b, t].double(), keys) / 16
            lse[b, t] = scores.logsumexp(-1)
            out[b, t] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
    return out, lse


@pytest.mark.parametrize("backend", ["tilelang", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention(backend, dtype):
    q, k, v, gate, tokens = attention(dtype)
    want, want_lse = documented_attention(q, k, v, tokens)
    out, lse = mate.qsa_sparse_attention(q, k, v, tokens, return_lse=True, backend=backend)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), want, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse.double(), want_lse, rtol=0, atol=1e-4)
    gated = mate.qsa_sparse_attention(q, k, v, tokens, gate=gate, num_splits=1, backend=backend)
    torch.testing.assert_close(gated, (out.float() * gate.float().sigmoid()).to(dtype), rtol=8e-3, atol=1e-4)
    pages = torch.arange(10, dtype=torch.int32).reshape(2, 5)
    packed = mate.qsa_sparse_attention(
        q.reshape(10, 24, 256),
        *(x.reshape(10, 12, 2, 256) for x in (k, v)),
        tokens.reshape(10, 35),
        block_table=pages,
        page_size=12,
        cu_seqlens_q=torch.tensor([0, 5, 10], dtype=torch.int32),
        num_requests=2,
        block_indices=torch.zeros(10, 8, dtype=torch.int32),
        assume_compact_blocks=True,
        warp_specialized=True,
        compute_dtype=torch.bfloat16,
        backend=backend,
    )
    assert same_bits(packed.reshape(out.shape), out)


@pytest.mark.parametrize("backend", ["tilelang", "reference"])
def test_attention_over_slots(backend):
    q, k, v, _, tokens = attention()
    slots = torch.where((tokens >= 0) & (tokens <= 55 + torch.arange(5)[:, None]), tokens, -1)
    slots = torch.where(slots >= 0, slots + torch.tensor([0, 60])[:, None, None], -1).int().reshape(10, 35)
    rows = q.reshape(10, 24, 256), k.reshape(120, 2, 256), v.reshape(120, 2, 256)
    room, lse = torch.zeros(10, 24, 300, dtype=torch.bfloat16), torch.zeros(10, 24)
    out = mate.qsa_sparse_attention(*rows, selected_kv_indices=slots, out=room[..., 20:276], lse=lse, backend=backend)
    want, want_lse = mate.qsa_sparse_attention(q, k, v, tokens, return_lse=True, backend=backend)
    assert out.data_ptr() == room[..., 20:].data_ptr()
    assert same_bits(out.reshape(want.shape), want)
    assert same_bits(lse.reshape(want_lse.shape), want_lse)
    empty, lse = mate.qsa_sparse_attention(
        *rows, selected_kv_indices=slots.fill_(999), return_lse=True, backend=backend
    )
    assert (empty == 0).all()
    assert torch.isneginf(lse).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale": 1.0, "softmax_scale": 1.0}, ValueError, "exclude each other"),
        ({"k_scale": 0.5}, ValueError, "k_scale is 0.5"),
        ({"compute_dtype": torch.float8_e4m3fn}, NotImplementedError, "compute_dtype is float8_e4m3fn"),
        ({"compute_dtype": torch.float16}, NotImplementedError, "compute_dtype is float16"),
        ({"block_indices": torch.zeros(2, 5, 9).int()}, ValueError, "token_indices has 35 entries a row; expected 39"),
        ({"query_positions": torch.zeros(2, 5).long()}, TypeError, "query_positions is int64"),
        ({"token_indices": torch.zeros(2, 5, 35).long()}, TypeError, "token_indices is int64"),
        ({"selected_kv_indices": torch.zeros(10, 5).int()}, ValueError, "exclude each other"),
        ({"num_requests": 3}, ValueError, "num_requests is 3"),
    ],
    ids=str,
)
def test_attention_refusals(options, error, message):
    q, k, v, _, tokens = attention()
    with pytest.raises(error, match=f"qsa_sparse_attention: .*{message}"):
        mate.qsa_sparse_attention(q, k, v, **{"token_indices": tokens} | options)
