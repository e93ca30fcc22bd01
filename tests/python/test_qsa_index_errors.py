"""Bad calls of QSA's indexer: which exception, and what it says."""

import numpy as np
import pytest
import tessera
from qsa import Index

INDEX_FUNCTIONS = [tessera.qsa_indexer_mqa_score, tessera.qsa_select, tessera.qsa_select_tokens]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("function", INDEX_FUNCTIONS)
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"scale": 1.0, "score_scale": 1.0}, ValueError, "scale and score_scale exclude"),
        ({"scale": 0.0}, ValueError, "scale is 0.0; expected a positive"),
        ({"scale": -1}, ValueError, "scale is -1"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
        ({"score_scale": float("inf")}, ValueError, "score_scale is inf"),
        ({"score_scale": 0}, ValueError, "score_scale is 0"),
        ({"score_scale": -2.0}, ValueError, "score_scale is -2.0"),
        ({"scale": "1"}, TypeError, "scale is '1'"),
        ({"page_size": 8}, ValueError, "page_size .*block_table"),
        ({"num_requests": 2}, ValueError, r"num_requests is 2; expected 3 \(B of block_keys\)"),
        ({"num_requests": 3.0}, TypeError, "num_requests"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"block_size": None}, TypeError, "block_size"),
        ({"cu_seqlens_q": np.zeros(4, np.int32)}, ValueError, "cu_seqlens_q"),
        ({"token_to_req": np.zeros(15, np.int32)}, ValueError, ".*token_to_req are for packed rows"),
        ({"query_positions": np.zeros((3, 5))}, TypeError, "query_positions is float64"),
        ({"query_positions": np.zeros((3, 5), np.int64)}, TypeError, "query_positions is int64"),
        ({"query_positions": np.zeros((3, 4), np.int32)}, ValueError, "query_positions .*axis 1"),
        ({"seq_lens_q": np.zeros(2, np.int32)}, ValueError, "seq_lens_q"),
        ({"seq_lens_k": [1, 2, 3]}, TypeError, "seq_lens_k is of type list"),
        ({"weights": np.zeros((3, 5, 4))}, TypeError, "weights is float64"),
        ({"weights": np.zeros((3, 5, 3), np.float32)}, ValueError, "weights .*axis 2"),
        ({"block_table": np.zeros((3, 2), np.int32), "page_size": 8}, ValueError, "page_size is 8; expected 40"),
        ({"block_table": np.zeros((2, 2), np.int32)}, ValueError, "q_idx .*axis 0|block_table"),
        ({"q_idx": np.zeros((3, 5, 64), np.float32)}, ValueError, "q_idx|block_keys"),
        ({"q_idx": np.zeros((3, 5, 4, 16), np.float64)}, TypeError, "q_idx is float64"),
        ({"block_keys": np.zeros((3, 40, 16), np.float16)}, TypeError, "block_keys is float16"),
        ({"block_keys": np.zeros((3, 40, 8), np.float32)}, ValueError, "block_keys .*axis 2"),
        ({"block_keys": np.zeros((40, 16), np.float32)}, ValueError, "block_keys has 2 axes"),
        ({"backend": "auto"}, ValueError, "backend"),
        ({"backend": "tilelang"}, ValueError, "backend"),
    ],
    ids=str,
)
def test_bad_calls(function, changes, error, message, backend):
    p = Index()
    arguments = {"q_idx": p.q, "block_keys": p.k, "backend": backend, **p.options} | changes
    with pytest.raises(error, match=f"^{function.__name__}: {message}"):
        function(**arguments)


@pytest.mark.parametrize("function", INDEX_FUNCTIONS[1:])
@pytest.mark.parametrize(
    ("budget", "error"), [(0, ValueError), (3, ValueError), (-4, ValueError), (2.0, TypeError), (None, TypeError)]
)
def test_bad_budgets(function, budget, error):
    p = Index()
    with pytest.raises(error, match=f"^{function.__name__}: budget"):
        function(p.q, p.k, budget=budget)


def test_bad_intervals_counts_and_scores():
    p = Index()
    q, k, table = p.q[0], p.k[0], np.zeros((3, 1), np.int32)
    rows, lens = np.zeros(5, np.int32), np.zeros(3, np.int32)
    cache = p.k[:, :, None]
    bad = [
        (lambda: tessera.qsa_mqa(q, k, rows[:4], rows), ValueError, "qsa_mqa_prefill: row_starts"),
        (lambda: tessera.qsa_mqa(q, k, rows, None), TypeError, "qsa_mqa_prefill: row_ends"),
        (lambda: tessera.qsa_mqa(q, k, rows, rows, 1.0, scale=1.0), ValueError, "scale and score_scale exclude"),
        (lambda: tessera.qsa_mqa(q, k, rows, rows.astype(np.int64)), TypeError, "row_ends is int64"),
        (lambda: tessera.qsa_mqa(q[0], k, rows, rows), ValueError, "q has 2 axes"),
        (lambda: tessera.qsa_mqa_decode(p.q, cache, table, lens, 0), ValueError, "qsa_mqa_decode: max_model_len is 0"),
        (lambda: tessera.qsa_mqa_decode(p.q, cache, table, lens, 2.0), TypeError, "max_model_len"),
        (lambda: tessera.qsa_mqa_decode(p.q, cache, table[:2], lens, 9), ValueError, "page_table"),
        (lambda: tessera.qsa_mqa_decode(p.q, cache, table, lens[:2], 9), ValueError, "context_lens"),
        (lambda: tessera.qsa_mqa_decode(p.q, k, table, lens, 9), ValueError, "k_cache has 2 axes"),
        (lambda: tessera.topk_blocks(np.zeros((2, 9)), 2), TypeError, "topk_blocks: scores is float64"),
        (lambda: tessera.topk_blocks(np.zeros((), np.float32), 2), ValueError, "scores has no axes"),
        (lambda: tessera.topk_blocks(np.zeros(9, np.float32), 0), ValueError, "k is 0"),
        (lambda: tessera.topk_blocks(np.zeros(9, np.float32), 2.0), TypeError, "k is 2.0"),
        (lambda: tessera.topk_blocks(np.zeros(9, np.float32), 2, backend="auto"), ValueError, "backend"),
    ]
    for call, error, message in bad:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (lambda x: tessera.topk_blocks(x, 2), "topk_blocks: scores"),
        (lambda x: tessera.qsa_screen_keys(x), "qsa_screen_keys: keys"),
        (lambda x: tessera.qsa_expand_blocks(x.view(np.int32), np.zeros((), np.int32)), "qsa_expand_blocks: block_ids"),
        (lambda x: tessera.qsa_mqa_decode(x, x, x.view(np.int32), x.view(np.int32), 9), "qsa_mqa_decode: q"),
        (lambda x: tessera.qsa_select(x, x), "qsa_select: q_idx"),
        (lambda x: tessera.qsa_sparse_attention(x, x, x, x.view(np.int32)), "qsa_sparse_attention: query"),
    ],
)
@pytest.mark.parametrize("axes", [6, 21])
def test_more_axes_than_there_are(function, argument, axes):
    with pytest.raises(ValueError, match=f"^{argument} has {axes} axes; expected"):
        function(np.zeros((1,) * (axes - 1) + (7,), np.float32))


def test_results_that_no_memory_can_hold():
    p, most = Index(), 2**63 - 1
    with pytest.raises(ValueError, match="^qsa_select_tokens: budget is 9223372036854775807, more tokens than"):
        tessera.qsa_select_tokens(p.q, p.k, budget=most, block_size=3)
    table, lens = np.zeros((3, 1), np.int32), np.zeros(3, np.int32)
    too_large = [
        ("qsa_select", lambda: tessera.qsa_select(p.q, p.k, budget=most)),
        ("qsa_select", lambda: tessera.qsa_select(p.q, p.k, budget=2**44)),
        ("topk_blocks", lambda: tessera.topk_blocks(p.q, 2**62)),
        ("qsa_mqa_decode", lambda: tessera.qsa_mqa_decode(p.q, p.k, table, lens, 2**60)),
    ]
    for name, call in too_large:
        with pytest.raises(MemoryError, match=rf"^{name}: no memory for a result of shape \("):
            call()
