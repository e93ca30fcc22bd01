"""Bad calls of QSA's attention: which exception, what it says, and that nothing has been written."""

import numpy as np
import pytest
import tessera
import torch
from qsa_tokens import Tokens
from tensors import DTYPES

attend = tessera.qsa_sparse_attention


def ints(*shape):
    return np.zeros(shape, np.int32)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query": None}, TypeError, "query is None|query is of type NoneType"),
        ({"query": np.zeros((25, 6, 16))}, TypeError, "query is float64"),
        ({"query": np.zeros((25, 6), np.float32)}, ValueError, "query has 2 axes"),
        ({"key": np.zeros((99, 2, 16), np.float16)}, TypeError, "key is float16"),
        ({"key": np.zeros((99, 4, 16), np.float32)}, ValueError, "value .*as key"),
        ({"value": np.zeros((98, 2, 8), np.float32)}, ValueError, "value .*as key"),
        ({"token_indices": None}, ValueError, "token_indices .*missing"),
        ({"token_indices": ints(25, 9).astype(np.int64)}, TypeError, "token_indices is int64"),
        ({"token_indices": ints(24, 9)}, ValueError, "token_indices .*axis 0"),
        ({"cu_seqlens_q": None}, ValueError, "cu_seqlens_q or token_to_req is missing"),
        ({"cu_seqlens_q": ints(4)}, ValueError, "cu_seqlens_q"),
        ({"cu_seqlens_k": ints(5).astype(np.int64)}, TypeError, "cu_seqlens_k is int64"),
        ({"token_to_req": ints(24)}, ValueError, "token_to_req"),
        ({"seq_lens_q": [1, 2, 3, 4]}, TypeError, "seq_lens_q is of type list"),
        ({"seq_lens_k": ints(3)}, ValueError, "seq_lens_k"),
        ({"query_positions": ints(24)}, ValueError, "query_positions"),
        ({"block_table": ints(4, 9)}, ValueError, "key has 3 axes"),
        ({"page_size": 16}, ValueError, "page_size is for keys in pages; block_table is missing"),
        ({"num_requests": 3}, ValueError, r"num_requests is 3; expected 4 \(B of cu_seqlens_k\)"),
        ({"num_requests": 4.0}, TypeError, "num_requests"),
        ({"scale": 1.0, "softmax_scale": 1.0}, ValueError, "scale and softmax_scale exclude each other"),
        ({"scale": float("nan")}, ValueError, "scale is nan; expected a finite number"),
        ({"softmax_scale": "1"}, TypeError, "softmax_scale is '1'"),
        ({"num_splits": 0}, ValueError, "num_splits is 0; expected at least 1"),
        ({"num_splits": -1}, ValueError, "num_splits is -1"),
        ({"num_splits": 2.0}, TypeError, "num_splits"),
        ({"gate": np.zeros((25, 6, 7), np.float32)}, ValueError, "gate .*axis 2"),
        ({"gate": np.zeros((25, 6, 8), np.float16)}, TypeError, "gate is float16"),
        ({"k_scale": 2.0}, ValueError, "k_scale is 2.0*; expected 1"),
        ({"v_scale": 0}, ValueError, "v_scale is 0.0*; expected 1"),
        ({"k_scale": None}, TypeError, "k_scale is None"),
        ({"compute_dtype": torch.bfloat16}, NotImplementedError, "compute_dtype is bfloat16; .*float32"),
        ({"compute_dtype": torch.float8_e4m3fn}, NotImplementedError, "compute_dtype is float8_e4m3fn"),
        ({"compute_dtype": DTYPES["f16"]}, NotImplementedError, "compute_dtype is float16"),
        ({"compute_dtype": "no such type"}, TypeError, "compute_dtype is 'no such type'"),
        ({"return_lse": 1}, TypeError, "return_lse is 1"),
        ({"warp_specialized": None}, TypeError, "warp_specialized is None"),
        ({"assume_compact_blocks": 1}, TypeError, "assume_compact_blocks is 1"),
        (
            {"block_indices": ints(25, 5)},
            ValueError,
            "token_indices has 24 entries a row; expected 23 for the 5 blocks",
        ),
        ({"block_indices": ints(25, 0)}, ValueError, "block_indices has 0 blocks a row; expected 1 to 512"),
        ({"block_indices": ints(25, 513), "token_indices": ints(25, 2055)}, ValueError, "block_indices has 513"),
        ({"block_indices": ints(24, 5)}, ValueError, "block_indices has other rows"),
        ({"block_indices": ints(1, 25, 5)}, ValueError, "block_indices has other rows"),
        ({"block_indices": ints(*[1] * 20), "token_indices": ints(*[1] * 19, 7)}, ValueError, "token_indices has"),
        ({"block_indices": np.zeros((25, 5), np.float32)}, TypeError, "block_indices is float32"),
        ({"block_indices": ints(25, 5), "token_indices": None}, ValueError, "block_indices needs the token_indices"),
        ({"selected_kv_indices": ints(25, 9)}, ValueError, "token_indices and selected_kv_indices exclude"),
        (
            {"selected_kv_indices": ints(25, 9), "token_indices": None},
            ValueError,
            "cu_seqlens_q and selected_kv_indices exclude",
        ),
        ({"lse": np.zeros((25, 6), np.float16)}, TypeError, "lse is float16"),
        ({"lse": np.zeros((25, 5), np.float32)}, ValueError, "lse"),
        ({"backend": "auto"}, ValueError, "backend"),
        ({"backend": "tilelang"}, ValueError, "backend"),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else getattr(x, "__name__", ""),
)
def test_bad_calls(changes, error, message, backend):
    p = Tokens()
    out = np.full((25, 6, 8), 7, np.float32)
    names = ("query", "key", "value", "token_indices")
    arguments = dict(zip(names, p.inputs, strict=True)) | p.options | {"backend": backend, "out": out} | changes
    with pytest.raises(error, match=f"^qsa_sparse_attention: ({message})"):
        attend(**arguments)
    assert (out == 7).all()


def test_bad_outputs():
    p = Tokens()
    room = np.zeros((25, 6, 16), np.float32)
    bad = [
        (np.zeros((25, 6, 8), np.float16), TypeError, "out is float16"),
        (np.zeros((25, 6, 9), np.float32), ValueError, "out .*axis 2"),
        (room[..., ::2], ValueError, "out has stride 2"),
        (p.q[..., :8], ValueError, "out overlaps query"),
        (np.broadcast_to(room[:1, :, :8], (25, 6, 8)), ValueError, "out"),
        ([1.0], TypeError, "out is of type list"),
    ]
    for out, error, message in bad:
        with pytest.raises(error, match=f"qsa_sparse_attention: {message}"):
            attend(*p.inputs, **p.options, out=out)
    with pytest.raises(ValueError, match="out overlaps gate"):
        attend(*p.inputs, **p.options, gate=room[..., :8], out=room[..., 4:12])


def test_slots_stand_alone():
    p = Tokens()
    slots, options = p.slots(), {"page_size": 4, "num_requests": 1, "gate": p.gates, "seq_lens_k": p.lens}
    for name, value in options.items():
        with pytest.raises(ValueError, match=f"qsa_sparse_attention: {name}"):
            attend(p.q, p.k, p.v, selected_kv_indices=slots, **{name: value})
    with pytest.raises(ValueError, match="selected_kv_indices takes packed rows"):
        attend(p.q[None], p.k, p.v, selected_kv_indices=slots[None])


def test_pages_and_requests_have_to_agree():
    p = Tokens()
    inputs, options = p.in_pages(16)
    with pytest.raises(ValueError, match=r"page_size is 8; expected 16 \(ps of key\)"):
        attend(*inputs, **options, page_size=8)
    packed = np.zeros((24, 2, 16, 4, 1), np.float32), np.zeros((24, 2, 4, 8, 1), np.float32)
    with pytest.raises(ValueError, match=r"page_size is 6; expected a multiple of 4 \(ps of key\)"):
        attend(p.q, *packed, p.lists, **options, page_size=6)
    with pytest.raises(ValueError, match="key has 5 axes, as in the packed layout, and no block_table; expected one"):
        attend(p.q, *packed, p.lists, cu_seqlens_q=p.cu_q)
    with pytest.raises(ValueError, match="value has 4; both are expected in one layout"):
        attend(p.q, packed[0], inputs[2], p.lists, **options)
    with pytest.raises(ValueError, match=r"num_requests is 5; expected 4 \(B of block_table\)"):
        attend(*inputs, **options, num_requests=5)
    inputs, options = p.batch()
    with pytest.raises(ValueError, match=r"num_requests is 5; expected 4 \(B of key\)"):
        attend(*inputs, **options, num_requests=5)
    with pytest.raises(ValueError, match="packed rows"):
        attend(*inputs, **options, cu_seqlens_q=p.cu_q)
