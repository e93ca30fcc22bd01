"""Bad calls of the operators with lists per row, of the single query block and of paged prefill: which exception, what it
says, and that nothing was written before it."""

import numpy as np
import pytest
import tessera
import torch
from sequences import Requests
from tensors import bits, to_torch

P = Requests("f32", rows=(3, 3), keys=(20, 9))
PAGES_K, PAGES_V, TABLES = P.pages(8)
SHARED = {"q": P.q, "q2k_indices": P.ids, "block_size": 8}


def outputs(*rows):
    return {"out": np.full((*rows, 8), 7, np.float32), "lse": np.full(rows, 7, np.float32)}


VALID = {
    "packed": (tessera.msa_sparse_attention, {**SHARED, "k": P.k, "v": P.v, **P.packed, **outputs(6, 6)}),
    "paged": (
        tessera.msa_sparse_attention,
        {**SHARED, "k": PAGES_K, "v": PAGES_V, "cu_seqlens_q": P.cu_q, **TABLES, **outputs(6, 6)},
    ),
    "decode": (
        tessera.msa_sparse_decode_attention,
        {**SHARED, "k": PAGES_K, "v": PAGES_V, **TABLES, "seqlen_q": 3, **outputs(6, 6)},
    ),
    "single_q": (
        tessera.block_sparse_attention_single_q,
        {
            "q": np.ones((2, 6, 16), np.float32),
            "k": np.ones((2, 29, 16), np.float32),
            "v": np.ones((2, 29, 8), np.float32),
            "kv_indices": np.zeros(4, np.int32),
            "block_size": 8,
            **outputs(2, 6),
        },
    ),
    "prefill": (
        tessera.block_sparse_gqa_prefill,
        {
            "q": P.q.reshape(2, 3, 6, 16),
            "k": PAGES_K,
            "v": PAGES_V,
            "kv_indices": np.zeros((2, 1, 4), np.int32),
            "block_size": 8,
            **TABLES,
            **outputs(2, 3, 6),
        },
    ),
}


def call(form, changes, kind="numpy"):
    """The valid call of a form with some arguments changed; outputs hold a pattern."""
    function, arguments = VALID[form]
    arguments = arguments | {n: arguments[n].copy() for n in ("out", "lse")} | changes
    before = [bits(arguments[n].copy()) for n in ("out", "lse")]
    given = arguments
    if kind == "torch":
        given = {n: to_torch(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for n, x in given.items()}
    try:
        return function(**given)
    except Exception:
        for n, old in zip(("out", "lse"), before, strict=True):
            assert np.array_equal(bits(arguments[n]), old), "an output was touched"
        raise


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("form", VALID)
def test_the_valid_calls_are_valid(form, backend, kind):
    call(form, {"backend": backend}, kind)


NONE = {"cu_seqlens_k": None, "page_table": None, "seqused_k": None}
STRUCTURE = [
    # form, what is changed, message
    ("packed", {"q": P.q[None]}, r"q has 4 axes; expected \[total_q, Hq, D\]"),
    ("packed", {"k": P.k[None]}, r"k has 4 axes; expected \[total_k, Hkv, D\]"),
    ("paged", {"k": P.k}, r"k has 3 axes; expected \[P, Hkv, ps, D\]"),
    ("paged", {"v": PAGES_V[:2]}, "v .*axis 0"),
    ("paged", {"v": PAGES_V[:, :, :4]}, "v .*axis 2"),
    ("packed", {"v": P.v[:, :1]}, "v .*axis 1"),
    ("packed", {"q": P.q[..., :8]}, "k .*axis 2.*D of q"),
    ("packed", {"q": P.q[:, :5], "out": np.zeros((6, 5, 8), np.float32)}, "q has 5 heads and k has 2"),
    ("packed", {"q2k_indices": P.ids[:1]}, "q2k_indices .*axis 0.*Hkv"),
    ("packed", {"q2k_indices": P.ids[:, :5]}, "q2k_indices .*axis 1.*total_q"),
    ("packed", {"q2k_indices": P.ids[0]}, r"q2k_indices has 2 axes; expected \[Hkv, total_q, W\]"),
    ("packed", NONE, "cu_seqlens_k, or page_table and seqused_k, are missing"),
    ("packed", TABLES, r"k has 3 axes; expected \[P, Hkv, ps, D\]"),
    ("paged", {"cu_seqlens_k": P.cu_k}, "cu_seqlens_k is for packed keys"),
    ("paged", {"page_table": None}, r"page_table \[B, max_pages\] is missing"),
    ("paged", {"seqused_k": None}, r"seqused_k \[B\] is missing"),
    ("prefill", {"page_table": None}, r"page_table \[B, max_pages\] is missing"),
    ("prefill", {"seqused_k": None}, r"seqused_k \[B\] is missing"),
    ("packed", {"cu_seqlens_q": P.cu_q[:0]}, "cu_seqlens_q is empty"),
    ("packed", {"cu_seqlens_q": P.cu_q[None]}, "cu_seqlens_q has 2 axes"),
    ("packed", {"cu_seqlens_k": P.cu_k[:2]}, "cu_seqlens_k .*axis 0"),
    ("paged", {"page_table": TABLES["page_table"][:1]}, "page_table .*axis 0"),
    ("decode", {"page_table": TABLES["page_table"][0]}, "page_table has 1 axes"),
    ("decode", {"seqused_k": TABLES["seqused_k"][:1]}, "seqused_k .*axis 0"),
    ("decode", {"seqlen_q": 4}, "q has 6 rows, not a multiple of seqlen_q 4"),
    ("decode", {"seqlen_q": 0}, "seqlen_q is 0; expected at least 1"),
    ("decode", {"seqlen_q": 1}, "page_table .*axis 0"),
    ("packed", {"q_offset": np.zeros(3, np.int32)}, "q_offset .*axis 0"),
    ("decode", {"q_offset": 1 << 31}, "q_offset is 2147483648"),
    ("single_q", {"q_offset": np.zeros(2, np.int32)}, "q_offset .*axis 0"),
    ("packed", {"block_size": 0}, "block_size is 0; expected at least 1"),
    ("packed", {"softmax_scale": float("nan")}, "softmax_scale"),
    ("packed", {"backend": "auto"}, "backend is 'auto'; expected 'native' or 'reference'"),
    ("packed", {"out": np.zeros((6, 6, 9), np.float32)}, "out .*axis 2"),
    ("packed", {"out": np.zeros((6, 6, 16), np.float32)[..., ::2]}, "out has stride 2 in its last axis"),
    ("packed", {"lse": np.zeros((6, 5), np.float32)}, "lse .*axis 1"),
    ("packed", {"q": P.q[..., ::2]}, "q has stride 2 in its last axis"),
    ("single_q", {"q": np.ones((1, 2, 6, 16), np.float32)}, r"q has 4 axes; expected \[H, bq, D\]"),
    ("single_q", {"k": np.ones((3, 29, 16), np.float32)}, "k .*axis 0.*H of q"),
    ("single_q", {"kv_indices": np.zeros((1, 2, 4), np.int32)}, r"kv_indices has 3 axes; expected \[W\] or \[H, W\]"),
    ("single_q", {"kv_indices": np.zeros((3, 4), np.int32)}, "kv_indices .*axis 0.*H of q"),
]
WIDE = np.int64
TYPES = [
    ("packed", {"q2k_indices": P.ids.astype(WIDE)}, "q2k_indices is int64; expected int32"),
    ("packed", {"cu_seqlens_q": P.cu_q.astype(WIDE)}, "cu_seqlens_q is int64; expected int32"),
    ("packed", {"cu_seqlens_q": None}, "cu_seqlens_q is of type NoneType"),
    ("packed", {"cu_seqlens_q": P.cu_q.tolist()}, "cu_seqlens_q is of type list"),
    ("packed", {"cu_seqlens_k": P.cu_k.astype(WIDE)}, "cu_seqlens_k is int64; expected int32"),
    ("paged", {"page_table": TABLES["page_table"].astype(WIDE)}, "page_table is int64; expected int32"),
    ("paged", {"seqused_k": TABLES["seqused_k"].astype(WIDE)}, "seqused_k is int64; expected int32"),
    ("decode", {"page_table": TABLES["page_table"].astype(np.uint32)}, "page_table is uint32; expected int32"),
    ("decode", {"seqused_k": None}, "seqused_k is of type NoneType"),
    ("prefill", {"page_table": TABLES["page_table"].astype(WIDE)}, "page_table is int64; expected int32"),
    ("prefill", {"seqused_k": TABLES["seqused_k"].astype(np.float32)}, "seqused_k is float32; expected int32"),
    ("single_q", {"kv_indices": np.zeros(4, WIDE)}, "kv_indices is int64; expected int32"),
    ("packed", {"page_table": TABLES["page_table"].astype(">i4")}, "page_table has a foreign byte order"),
    ("packed", {"q_offset": P.cu_q[:2].astype(WIDE)}, "q_offset is int64; expected int32"),
    ("packed", {"q_offset": 1.0}, r"q_offset is 1\.0; expected an int or int32 \[B\]"),
    ("decode", {"seqlen_q": 3.0}, r"seqlen_q is 3\.0; expected an int"),
    ("packed", {"k": P.k.astype(np.float16)}, "v is float32 but k is float16"),
    ("packed", {"q": P.q.astype(np.float64)}, "q is float64; expected bfloat16, float16 or float32"),
    ("packed", {"out": np.zeros((6, 6, 8), np.float16)}, "out is float16; expected float32"),
    ("packed", {"lse": np.zeros((6, 6), np.float64)}, "lse is float64; expected float32"),
    ("packed", {"causal": None}, "causal is None; expected a bool"),
    ("packed", {"return_softmax_lse": 1}, "return_softmax_lse is 1; expected a bool"),
    ("single_q", {"return_lse": 1}, "return_lse is 1; expected a bool"),
    ("packed", {"softmax_scale": "1"}, "softmax_scale is '1'; expected a float"),
]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("form", "changes", "exception", "message"),
    [(f, c, ValueError, m) for f, c, m in STRUCTURE] + [(f, c, TypeError, m) for f, c, m in TYPES],
)
def test_bad_calls(form, changes, exception, message, backend):
    name = VALID[form][0].__name__
    with pytest.raises(exception, match=f"^{name}: {message}"):
        call(form, {"backend": backend} | changes)


@pytest.mark.parametrize("form", ["packed", "paged", "decode", "single_q", "prefill"])
def test_outputs_that_overlap_something(form):
    function, arguments = VALID[form]
    q = np.zeros((*arguments["q"].shape[:-1], 16), np.float32)
    with pytest.raises(ValueError, match=f"^{function.__name__}: out overlaps q"):
        function(**arguments | {"q": q, "out": q[..., :8]})
    lse = arguments["out"][..., 0]
    with pytest.raises(ValueError, match=f"^{function.__name__}: lse overlaps out"):
        function(**arguments | {"lse": lse})


def test_a_table_must_not_be_an_output():
    memory = np.zeros((6, 6), np.float32)
    changes = {"lse": memory, "page_table": memory.view(np.int32)[:2]}
    with pytest.raises(ValueError, match="^msa_sparse_attention: lse overlaps page_table"):
        tessera.msa_sparse_attention(**VALID["paged"][1] | changes)


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("packed", {"cu_seqlens_q": torch.tensor([0, 3, 6])}, "cu_seqlens_q is int64; expected int32"),
        ("paged", {"seqused_k": torch.zeros(2, dtype=torch.int64)}, "seqused_k is int64; expected int32"),
    ],
)
def test_torch_integers_are_int64_by_default(form, changes, message):
    with pytest.raises(TypeError, match=message):
        call(form, changes, "torch")


def test_a_fake_tensor_has_no_memory():
    meta = torch.zeros(2, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="seqused_k"):
        call("paged", {"seqused_k": meta}, "torch")
