"""Bad calls: which exception, what it says, and that nothing was written before it."""

import numpy as np
import pytest
import tessera
import torch
from tensors import Problem, bits, to_torch

I32_MAX = 2**31 - 1


def call(change=None, kind="numpy", **options):
    """A valid prefill with one thing changed; out and lse are prepared with a pattern."""
    p = Problem("f32", batch=2, sq=16, sk=24, hq=4, hkv=2, d=16, dv=8, block=8, width=3, per_head=True)
    arguments = {
        "q": p.q,
        "k": p.k,
        "v": p.v,
        "kv_indices": p.ids,
        "out": np.full((2, 16, 4, 8), 7, np.float32),
        "lse": np.full((2, 16, 4), 7, np.float32),
        "block_size": 8,
    }
    arguments.update(change(p) if change else {})
    arguments.update(options)
    outputs = [arguments["out"], arguments["lse"]]
    before = [bits(x.copy()) for x in outputs]
    if kind == "torch":
        arguments = {n: to_torch(x) if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
    positional = [arguments.pop(n) for n in ("q", "k", "v", "kv_indices")]
    try:
        return tessera.block_sparse_gqa_prefill(*positional, **arguments)
    except Exception:
        for x, y in zip(outputs, before, strict=True):
            assert np.array_equal(bits(x), y), "an output was touched"
        raise


STRUCTURE = [
    # what is changed, exception, message
    (lambda p: {"q": p.q[0]}, ValueError, r"q has 3 axes; expected \[B, Sq, Hq, D\]"),
    (lambda p: {"q": p.q[None]}, ValueError, "q has 5 axes"),
    (lambda p: {"q": p.q[None, None, None]}, ValueError, "q has 7 axes"),
    (lambda p: {"q": np.zeros((), np.float32)}, ValueError, "q has no axes"),
    (lambda p: {"k": p.k[0]}, ValueError, "k has 3 axes"),
    (lambda p: {"v": p.v[0]}, ValueError, "v has 3 axes"),
    (lambda p: {"kv_indices": p.ids[0, 0]}, ValueError, "kv_indices has 2 axes"),
    (lambda p: {"k": p.k[:1]}, ValueError, "k .*axis 0"),
    (lambda p: {"k": p.k[..., :8]}, ValueError, "k .*axis 3"),
    (lambda p: {"v": p.v[:, :8]}, ValueError, "v .*axis 1"),
    (lambda p: {"v": p.v[:, :, :1]}, ValueError, "v .*axis 2"),
    (
        lambda p: {"q": p.q[:, :, :3], "out": np.zeros((2, 16, 3, 8), np.float32)},
        ValueError,
        "q has 3 heads and k has 2",
    ),
    (lambda p: {"kv_indices": p.ids[:, :, :1]}, ValueError, "kv_indices .*axis 2.*nQ"),
    (lambda p: {"kv_indices": p.ids[:, :1]}, ValueError, "kv_indices .*axis 1.*Hkv"),
    (lambda p: {"kv_indices": p.ids[:1]}, ValueError, "kv_indices .*axis 0"),
    (lambda p: {"block_q": 4}, ValueError, "kv_indices .*nQ"),
    (lambda p: {"block_size": 0}, ValueError, "block_size is 0; expected at least 1"),
    (lambda p: {"block_size": -8}, ValueError, "block_size is -8"),
    (lambda p: {"block_q": 0}, ValueError, "block_q is 0"),
    (lambda p: {"softmax_scale": float("nan")}, ValueError, "softmax_scale"),
    (lambda p: {"softmax_scale": float("inf")}, ValueError, "softmax_scale"),
    (lambda p: {"q_offset": I32_MAX + 1}, ValueError, f"q_offset is {I32_MAX + 1}"),
    (lambda p: {"q_offset": 1 << 70}, ValueError, "q_offset is 1180591620717411303424"),
    (lambda p: {"q_offset": np.zeros(3, np.int32)}, ValueError, "q_offset .*axis 0"),
    (lambda p: {"q_offset": np.zeros((), np.int32)}, ValueError, "q_offset has no axes"),
    (lambda p: {"q_offset": np.zeros((2, 1), np.int32)}, ValueError, "q_offset has 2 axes"),
    (lambda p: {"backend": "auto"}, ValueError, "backend is 'auto'; expected 'native' or 'reference'"),
    (lambda p: {"backend": None}, ValueError, "backend is None"),
    (lambda p: {"out": np.zeros((2, 16, 4, 9), np.float32)}, ValueError, "out .*axis 3"),
    (lambda p: {"out": np.zeros((2, 16, 4), np.float32)}, ValueError, "out has 3 axes"),
    (lambda p: {"lse": np.zeros((2, 16, 5), np.float32)}, ValueError, "lse .*axis 2"),
    (lambda p: {"lse": np.zeros((), np.float32)}, ValueError, "lse has no axes"),
    (
        lambda p: {"out": np.zeros((2, 16, 4, 16), np.float32)[..., ::2]},
        ValueError,
        "out has stride 2 in its last axis",
    ),
]

TYPES = [
    (lambda p: {"q": p.q.astype(np.float64)}, "q is float64; expected bfloat16, float16 or float32"),
    (lambda p: {"q": p.ids}, "q is int32"),
    (lambda p: {"q": p.q.astype(np.complex64)}, "q is complex64"),
    (lambda p: {"k": p.k.astype(np.float16)}, "v is float32 but k is float16"),
    (lambda p: {"v": p.v.astype(np.float16)}, "v is float16 but k is float32"),
    (lambda p: {"q": p.q.astype(np.float16)}, "k is float32 but q is float16"),
    (lambda p: {"kv_indices": p.ids.astype(np.int64)}, "kv_indices is int64; expected int32"),
    (lambda p: {"kv_indices": p.ids.astype(np.float32)}, "kv_indices is float32; expected int32"),
    (lambda p: {"kv_indices": p.ids.tolist()}, "kv_indices is of type list; expected a torch CPU tensor"),
    (lambda p: {"q": None}, "q is of type NoneType"),
    (lambda p: {"out": np.zeros((2, 16, 4, 8), np.float16)}, "out is float16; expected float32"),
    (lambda p: {"lse": np.zeros((2, 16, 4), np.float16)}, "lse is float16; expected float32"),
    (lambda p: {"lse": np.zeros((2, 16, 4), np.float64)}, "lse is float64; expected float32"),
    (lambda p: {"q_offset": np.zeros(2, np.int64)}, "q_offset is int64; expected int32"),
    (lambda p: {"q_offset": 1.0}, r"q_offset is 1\.0; expected an int or int32 \[B\]"),
    (lambda p: {"q_offset": [0, 0]}, r"q_offset is \[0, 0\]; expected"),
    (lambda p: {"block_size": 8.0}, r"block_size is 8\.0; expected an int"),
    (lambda p: {"block_q": "8"}, "block_q is '8'; expected an int"),
    (lambda p: {"causal": 1}, "causal is 1; expected a bool"),
    (lambda p: {"return_lse": None}, "return_lse is None; expected a bool"),
    (lambda p: {"softmax_scale": "1"}, "softmax_scale is '1'; expected a float"),
]


def test_the_valid_call_is_valid():
    for kind in ("numpy", "torch"):
        for backend in ("native", "reference"):
            call(kind=kind, backend=backend)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("change", "exception", "message"), STRUCTURE, ids=[x[2] for x in STRUCTURE])
def test_bad_structure(change, exception, message, kind, backend):
    with pytest.raises(exception, match="^block_sparse_gqa_prefill: " + message):
        call(lambda p: {"backend": backend, **change(p)}, kind)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("change", "message"), TYPES, ids=[x[1] for x in TYPES])
def test_bad_types(change, message, kind):
    with pytest.raises(TypeError, match="^block_sparse_gqa_prefill: " + message):
        call(change, kind)


def test_torch_index_of_int64():
    q, k, v, ids = Problem("bf16").inputs_as("torch")
    with pytest.raises(TypeError, match="block_sparse_gqa_prefill: kv_indices is int64; expected int32"):
        tessera.block_sparse_gqa_prefill(q, k, v, ids.long(), block_size=8)


# ---- Overlap ----


def overlapping(name: str):
    """An input and an output, both [2, 16, 4, 8], that share memory in the way that `name` says."""
    raw = np.zeros(4 * 2 * 16 * 4 * 8, np.float32)
    dense = raw[: 2 * 16 * 4 * 8].reshape(2, 16, 4, 8)
    if name == "same":
        return dense, dense
    if name == "shifted by a row":
        return dense, raw[8 : 8 + dense.size].reshape(dense.shape)
    if name == "one element":
        return dense, raw[dense.size - 1 : 2 * dense.size - 1].reshape(dense.shape)
    wide = raw[: 2 * dense.size].reshape(2, 16, 4, 16)
    if name == "strided":  # both stride over every second group of 8 features, 4 features apart
        return wide[..., :8], wide[..., 4:12]
    if name == "interleaved, apart":  # address ranges overlap, no element does
        return wide[..., :8], wide[..., 8:]
    raise ValueError(name)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["same", "shifted by a row", "one element", "strided"])
@pytest.mark.parametrize("argument", ["q", "k", "v"])
def test_out_that_overlaps_an_input_is_refused(argument, name, kind):
    given, out = overlapping(name)
    given[...] = 3
    shared = {n: np.ones((2, 16, 4, 8), np.float32) for n in "qkv"} | {argument: given}
    ids = np.zeros((2, 2, 1), np.int32)
    with pytest.raises(ValueError, match=f"^block_sparse_gqa_prefill: out overlaps {argument}$"):
        call(lambda p: {**shared, "kv_indices": ids, "out": out}, kind)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_interleaved_views_that_share_no_element_are_fine(kind):
    q, out = overlapping("interleaved, apart")
    q[...] = 1
    ones = np.ones((2, 16, 4, 8), np.float32)
    call(lambda p: {"q": q, "k": ones, "v": ones, "kv_indices": np.zeros((2, 2, 1), np.int32), "out": out}, kind)
    assert (out == 1).all()
    assert (q == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"lse": np.zeros((2, 16, 4, 8), np.float32)[..., 0], "out": None}, None),
        (lambda p: shared_lse(p, "q"), "lse overlaps q"),
        (lambda p: shared_lse(p, "out"), "lse overlaps out"),
        (lambda p: shared_lse(p, "ids"), "lse overlaps kv_indices"),
        (lambda p: {"out": np.broadcast_to(np.zeros(8, np.float32), (2, 16, 4, 8))}, "out is read-only"),
        (
            lambda p: {"lse": np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (2, 16, 4), (64, 4, 8))},
            "lse overlaps itself",
        ),
    ],
    ids=["lse inside a wider tensor", "q", "out", "kv_indices", "broadcast out", "lse over itself"],
)
def test_lse_and_itself(change, message):
    p = Problem("f32", batch=2, sq=16, sk=24, hq=4, hkv=2, d=16, dv=8, block=8, width=3, per_head=True)
    if message is None:
        tessera.block_sparse_gqa_prefill(*p.inputs, block_size=8, **change(p))
        return
    with pytest.raises(ValueError, match=f"^block_sparse_gqa_prefill: {message}"):
        call(change)


def shared_lse(p, name: str):
    if name == "q":
        return {"lse": p.q[..., 0]}
    if name == "out":
        out = np.zeros((2, 16, 4, 8), np.float32)
        return {"out": out, "lse": out[..., 3]}
    ids = np.zeros((2, 16, 4), np.int32)
    return {"kv_indices": ids[:, :2, :3], "lse": ids.view(np.float32)}


def test_expanded_torch_out_is_refused():
    q, k, v, ids = Problem("f32", batch=2, sq=16, sk=24, d=16, dv=8).inputs_as("torch")
    out = torch.zeros(1, 16, 4, 8).expand(2, 16, 4, 8)
    with pytest.raises(ValueError, match="out overlaps itself"):
        tessera.block_sparse_gqa_prefill(q, k, v, ids, block_size=8, out=out)


# ---- The other operators ----

X = np.zeros((1, 16, 4, 8), np.float32)
Y = np.zeros((1, 16, 2, 8), np.float32)
OUT, L = np.zeros((3, 8), np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("function", "exception", "message"),
    [
        (
            lambda: tessera.block_sparse_gqa_prefill_state(X, Y, Y, X),
            TypeError,
            "block_sparse_gqa_prefill_state: kv_indices is float32",
        ),
        (
            lambda: tessera.block_sparse_gqa_prefill_state(X, Y, Y, np.zeros((1, 2, 1), np.int64)),
            TypeError,
            "block_sparse_gqa_prefill_state: kv_indices is int64",
        ),
        (
            lambda: tessera.cp_merge([], np.float32),
            ValueError,
            r"cp_merge: states is empty; expected at least one \(o, l, m\)",
        ),
        (lambda: tessera.cp_merge([(OUT, L)], np.float32), ValueError, r"cp_merge: states\[0\] has 2 entries"),
        (lambda: tessera.cp_merge(OUT, np.float32), TypeError, "cp_merge: states is not a sequence"),
        (
            lambda: tessera.cp_merge([(OUT, L, L), OUT], np.float32),
            TypeError,
            r"cp_merge: states\[1\] is not a sequence",
        ),
        (lambda: tessera.cp_merge([(OUT, L, L)], np.float64), TypeError, "cp_merge: output_dtype is float64"),
        (lambda: tessera.cp_merge([(OUT, L, L)], torch.int32), TypeError, "cp_merge: output_dtype is int32"),
        (lambda: tessera.cp_merge([(OUT, L, L)], "float"), TypeError, "cp_merge: output_dtype is float64"),
        (lambda: tessera.cp_merge([(OUT, L, L)], "words"), TypeError, "cp_merge: output_dtype is 'words'"),
        (lambda: tessera.cp_merge([(OUT, L, L), (OUT[:2], L, L)], np.float32), ValueError, "cp_merge: "),
        (lambda: tessera.cp_merge([(OUT, L, L), (OUT, L[:2], L)], np.float32), ValueError, "cp_merge: "),
        (
            lambda: tessera.cp_merge([(OUT.astype(np.float16), L, L)], np.float32),
            TypeError,
            "cp_merge: .*float16; expected float32",
        ),
        (
            lambda: tessera.cp_merge([(OUT, L.astype(np.float64), L)], np.float32),
            TypeError,
            r"cp_merge: states\[0\] l is float64",
        ),
        (
            lambda: tessera.merge_states([]),
            ValueError,
            r"merge_states: partials is empty; expected at least one \(out, lse\)",
        ),
        (lambda: tessera.merge_states([(OUT,)]), ValueError, r"merge_states: partials\[0\] has 1 entries"),
        (
            lambda: tessera.merge_states([(OUT, L), (OUT, L, L)]),
            ValueError,
            r"merge_states: partials\[1\] has 3 entries",
        ),
        (lambda: tessera.merge_states([(OUT, L), (OUT.astype(np.float16), L)]), TypeError, "merge_states: "),
        (lambda: tessera.merge_states([(OUT, L[:2])]), ValueError, "merge_states: "),
        (lambda: tessera.merge_states([(OUT, L)], backend="auto"), ValueError, "merge_states: backend is 'auto'"),
        (lambda: tessera.moba_select(X[0], Y, topk=2), ValueError, "moba_select: q has 3 axes"),
        (lambda: tessera.moba_select(X, Y[..., :4], topk=2), ValueError, "moba_select: k "),
        (lambda: tessera.moba_select(X, Y.astype(np.float16), topk=2), TypeError, "moba_select: k is float16"),
        (lambda: tessera.moba_select(X, Y, topk=-1), ValueError, "moba_select: topk is -1"),
        (lambda: tessera.moba_select(X, Y, topk="2"), TypeError, "moba_select: topk is '2'; expected an int"),
        (lambda: tessera.moba_select(X, Y, topk=2, block_size=0), ValueError, "moba_select: block_size is 0"),
        (lambda: tessera.moba_select(X, Y, topk=2, block_q=0), ValueError, "moba_select: block_q is 0"),
        (lambda: tessera.moba_select(X, Y, topk=2, local_blocks=-1), ValueError, "moba_select: local_blocks is -1"),
        (lambda: tessera.moba_select(X, Y, topk=2, init_blocks=-1), ValueError, "moba_select: init_blocks is -1"),
        (lambda: tessera.moba_select(X, Y, topk=2, local_blocks=2, init_blocks=2), ValueError, "moba_select: "),
        (
            lambda: tessera.moba_select(X, Y, topk=2, q_offset=np.zeros(2, np.int32)),
            ValueError,
            "moba_select: q_offset",
        ),
        (lambda: tessera.mass_select(X[0], Y, topk=2), ValueError, "mass_select: q has 3 axes"),
        (lambda: tessera.mass_select(X, Y.astype(np.float16), topk=2), TypeError, "mass_select: k is float16"),
        (lambda: tessera.mass_select(X, Y, topk=2, stride=0), ValueError, "mass_select: stride is 0"),
        (
            lambda: tessera.mass_select(X, Y, topk=2, softmax_scale=float("nan")),
            ValueError,
            "mass_select: softmax_scale",
        ),
        (lambda: tessera.mass_select(X, Y, topk=2, backend="fast"), ValueError, "mass_select: backend is 'fast'"),
        (lambda: tessera.explain("cp_merge"), ValueError, "explain: operator is cp_merge"),
        (lambda: tessera.set_num_threads(-1), ValueError, "set_num_threads: "),
        (lambda: tessera.set_num_threads(1.5), TypeError, r"set_num_threads: n is 1\.5"),
    ],
)
def test_bad_calls_of_the_other_operators(function, exception, message):
    with pytest.raises(exception, match="^" + message):
        function()


def test_an_error_inside_a_generator_of_states_comes_through():
    def states():
        yield OUT, L, L
        raise OSError("a rank is gone")

    with pytest.raises(OSError, match="a rank is gone"):
        tessera.cp_merge(states(), np.float32)


def test_an_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError):
        call(threads=2)


def test_errors_leave_no_trace_in_later_calls():
    with pytest.raises(ValueError, match="backend"):
        call(backend="auto")
    call()
