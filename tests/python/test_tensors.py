"""Tensors in and out: kinds, dtypes, strides, lifetimes, and what cannot be taken."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
import tessera
import torch
from tensors import DTYPES, KINDS, DLPackOnly, OldDLPack, Problem, as_kind, bits, same_bits, to_torch

prefill = tessera.block_sparse_gqa_prefill


def kind_of(result) -> str:
    root = type(result).__module__.partition(".")[0]
    return {"jaxlib": "jax"}.get(root, root)


# ---- In and out ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_gives_its_own_kind_and_the_same_bits(kind, dtype):
    p = Problem(dtype)
    expected = prefill(*p.inputs, block_size=p.block, return_lse=True)
    out, lse = prefill(*p.inputs_as(kind), block_size=p.block, return_lse=True)
    assert kind_of(out) == kind_of(lse) == {"dlpack": "numpy"}.get(kind, kind)
    assert same_bits(out, expected[0])
    assert same_bits(lse, expected[1])
    names = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    assert str(out.dtype).removeprefix("torch.") == names[dtype]
    assert str(lse.dtype).removeprefix("torch.") == "float32"


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_operators_give_the_kind_they_were_given(kind):
    p = Problem("f32", sq=16, sk=16)
    q, k, v, ids = p.inputs_as(kind)
    want = {"dlpack": "numpy"}.get(kind, kind)
    states = tessera.block_sparse_gqa_prefill_state(q, k, v, ids, block_size=8)
    assert [kind_of(x) for x in states] == [want] * 3
    assert kind_of(tessera.cp_merge([states, states], np.float32)) == want
    assert [kind_of(x) for x in tessera.merge_states([(states[0], states[2])])] == [want] * 2
    assert kind_of(tessera.moba_select(q, k, topk=2, block_size=8)) == want
    assert kind_of(tessera.mass_select(q, k, topk=2, block_size=8, block_q=8)) == want


def test_dlpack_from_before_version_1_is_read():
    p = Problem("bf16")
    old = [OldDLPack(to_torch(x)) for x in p.inputs]
    assert same_bits(prefill(*old, block_size=p.block), prefill(*p.inputs, block_size=p.block))


def test_a_producer_with_from_dlpack_gets_its_own_kind(monkeypatch):
    class Box(DLPackOnly):
        pass

    module = type(sys)("box_arrays")
    module.from_dlpack = lambda x: Box(torch.from_dlpack(x))
    monkeypatch.setitem(sys.modules, "box_arrays", module)
    Box.__module__ = "box_arrays"
    p = Problem("bf16")
    out = prefill(*(Box(to_torch(x)) for x in p.inputs), block_size=p.block)
    assert isinstance(out, Box)
    assert same_bits(out.tensor, prefill(*p.inputs, block_size=p.block))


def test_kinds_may_be_mixed_and_q_decides():
    p = Problem("bf16")
    q, k, v, ids = p.inputs
    out = prefill(to_torch(q), k, DLPackOnly(to_torch(v)), ids, block_size=p.block)
    assert isinstance(out, torch.Tensor)
    assert same_bits(out, prefill(*p.inputs, block_size=p.block))


def test_parameters_and_subclasses_give_plain_tensors():
    p = Problem("f32")
    q, k, v, ids = p.inputs_as("torch")
    with torch.no_grad():
        out = prefill(torch.nn.Parameter(q), k, v, ids, block_size=p.block)
    assert type(out) is torch.Tensor
    assert not out.requires_grad


def test_numpy_subclass_is_an_array():
    class Sub(np.ndarray):
        pass

    p = Problem("f32")
    assert isinstance(prefill(p.q.view(Sub), p.k, p.v, p.ids, block_size=p.block), np.ndarray)


# ---- Views ----


def strided(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another layout, between NaN where they are floats."""
    if layout == "heads first":  # [B, H, S, D] in memory
        return np.ascontiguousarray(np.moveaxis(array, -2, 1)).swapaxes(1, -2)
    pad = np.nan if array.dtype != np.int32 else 1 << 20
    if layout == "offset":  # a slice out of the middle of every axis
        wide = np.full([n + 5 for n in array.shape], pad, array.dtype)
        view = wide[tuple(slice(2, 2 + n) for n in array.shape)]
    else:  # every second row of each axis but the last
        wide = np.full([2 * n for n in array.shape[:-1]] + [array.shape[-1] + 3], pad, array.dtype)
        view = wide[(*[slice(1, None, 2)] * (array.ndim - 1), slice(3, None))]
    view[...] = array
    return view


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("layout", ["heads first", "offset", "gaps"])
def test_strided_views_give_the_same_bits(kind, dtype, layout):
    p = Problem(dtype)
    expected = prefill(*p.inputs, block_size=p.block, return_lse=True)
    layouts = [layout] * 3 + ["gaps" if layout == "heads first" else layout]
    views = [strided(x, name) for x, name in zip(p.inputs, layouts, strict=True)]
    assert not views[0].flags.c_contiguous
    out = strided(np.zeros_like(expected[0]), layout)
    lse = strided(np.zeros_like(expected[1]), "gaps")
    around = out.base.copy() if layout != "heads first" else None
    q, k, v, ids, o, s = (as_kind(kind, x) for x in (*views, out, lse))
    result = prefill(q, k, v, ids, block_size=p.block, out=o, lse=s, return_lse=True)
    assert result[0] is o
    assert result[1] is s
    assert same_bits(out, expected[0])
    assert same_bits(lse, expected[1])
    if around is not None:  # nothing outside the view was written
        out[...] = 0
        assert np.array_equal(bits(out.base), bits(around))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_broadcast_inputs_are_read_through_stride_0(kind):
    p = Problem("f32", batch=1)
    q, k, v, ids = p.inputs
    expected = np.concatenate([prefill(*p.inputs, block_size=p.block)] * 3)
    wide = [np.broadcast_to(x, (3, *x.shape[1:])) for x in (q, k, v, ids)]
    if kind == "torch":
        wide = [torch.from_numpy(x).expand(3, *x.shape[1:]) for x in (q, k, v, ids)]
    assert same_bits(prefill(*wide, block_size=p.block), expected)


def test_inputs_are_never_copied():
    """2^31 + 128 keys that are one row in memory: a copy of k alone would take 64 GiB."""
    sk = (1 << 31) + 128
    row = torch.ones(8)
    k = row.expand(1, sk, 1, 8)
    q = torch.ones(1, 1, 1, 8)
    ids = torch.tensor([[[0, sk // 128 - 1]]], dtype=torch.int32)
    out, lse = prefill(q, k, k, ids, return_lse=True)
    assert torch.equal(out, torch.ones(1, 1, 1, 8))
    torch.testing.assert_close(lse.item(), 8**0.5 + np.log(256), atol=1e-5, rtol=0)


def test_strides_of_axes_of_size_1_mean_nothing():
    p = Problem("f32", batch=1, sq=1, hq=1, hkv=1, dv=1)
    q, k, v, ids = p.inputs
    expected = prefill(q, k, v, ids, block_size=p.block)
    odd = np.lib.stride_tricks.as_strided
    q = odd(q, q.shape, (-12, 6, 3, 4))
    ids = odd(ids, ids.shape, (7, -1, 4))
    v = odd(v, v.shape, (1, v.strides[1], 2, -20))
    assert same_bits(prefill(q, k, v, ids, block_size=p.block), expected)


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
def test_empty_tensors(kind):
    p = Problem("bf16")
    for sq, sk in ((0, 53), (37, 0), (0, 0)):
        q, k, v, ids = p.q[:, :sq], p.k[:, :sk], p.v[:, :sk], p.ids[:, : -(-sq // p.block)]
        out = prefill(*(as_kind(kind, x) for x in (q, k, v, ids)), block_size=p.block)
        assert tuple(out.shape) == (2, sq, 4, 8)
        assert not np.any(bits(out))


def test_read_only_inputs_are_read():
    p = Problem("bf16")
    expected = prefill(*p.inputs, block_size=p.block)
    for x in p.inputs:
        x.flags.writeable = False
    assert same_bits(prefill(*p.inputs, block_size=p.block), expected)


# ---- Lifetimes ----


def test_nothing_is_kept_and_nothing_is_released_early():
    released = []

    class Watched(DLPackOnly):
        def __dlpack__(self, **kwargs):
            base = self.tensor.clone()
            weakref.finalize(base, released.append, None)
            return base.__dlpack__(**kwargs)  # from now on only the capsule keeps the memory

    p = Problem("f32")
    inputs = [Watched(to_torch(x)) for x in p.inputs]
    out = prefill(*inputs, block_size=p.block)
    gc.collect()
    assert len(released) == 4
    assert same_bits(out, prefill(*p.inputs, block_size=p.block))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_reference_counts_are_unchanged(kind):
    p = Problem("f32")
    inputs = p.inputs_as(kind)
    out = as_kind(kind, np.zeros_like(prefill(*p.inputs, block_size=p.block)))
    objects = (*inputs, out)
    before = [sys.getrefcount(x) for x in objects]
    for _ in range(10):
        prefill(*inputs, block_size=p.block, out=out)
        with pytest.raises(ValueError, match="block_size"):
            prefill(*inputs, block_size=0, out=out)
    assert [sys.getrefcount(x) for x in objects] == before


def test_results_of_foreign_kinds_own_their_memory():
    class Box(DLPackOnly):
        pass

    out = tessera._core.as_dlpack(np.full((3, 5), 7, ml_dtypes.bfloat16))
    gc.collect()
    assert torch.equal(torch.from_dlpack(out), torch.full((3, 5), 7, dtype=torch.bfloat16))


def test_import_needs_no_torch():
    code = (
        "import sys, numpy as np, tessera\n"
        "x = np.ones((1, 4, 1, 8), np.float32)\n"
        "tessera.block_sparse_gqa_prefill(x, x, x, np.zeros((1, 1, 1), np.int32))\n"
        "tessera.build_block_kv_indices(np.ones((1, 1, 1), bool), 1)\n"
        "assert 'torch' not in sys.modules and 'ml_dtypes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- What cannot be taken ----


def torch_problem():
    return Problem("f32", batch=1, sq=8, sk=8, block=8, width=1).inputs_as("torch")


def test_a_gradient_is_refused_unless_grad_mode_is_off():
    q, k, v, ids = torch_problem()
    with pytest.raises(NotImplementedError, match=r"block_sparse_gqa_prefill: k requires a gradient.*detach.*no_grad"):
        prefill(q, k.requires_grad_(), v, ids, block_size=8)
    with torch.no_grad():
        prefill(q, k, v, ids, block_size=8)
    with torch.inference_mode():
        prefill(q, k, v, ids, block_size=8)
    prefill(q, k.detach(), v, ids, block_size=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q.to("meta"), "q cannot be read in place: .*meta"),
        (lambda q: q.to_sparse(), "q cannot be read in place"),
        (lambda q: torch._subclasses.FakeTensorMode().from_tensor(q), "q has no memory"),
        (
            lambda q: torch.view_as_complex(q.reshape(1, 8, 4, 8, 2)).conj().imag[:, :, :, :1],
            "q is a lazily negated view",
        ),
    ],
    ids=["meta", "sparse", "fake", "negated"],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_without_plain_memory(change, message):
    q, k, v, ids = torch_problem()
    with pytest.raises(ValueError, match="block_sparse_gqa_prefill: " + message):
        prefill(change(q), k, v, ids, block_size=8)


def test_the_cause_of_a_failed_export_is_kept():
    class Broken(DLPackOnly):
        def __dlpack__(self, **kwargs):
            raise BufferError("locked")

    q, k, v, ids = torch_problem()
    with pytest.raises(ValueError, match=r"v cannot be read in place: locked$") as error:
        prefill(q, k, Broken(v), ids, block_size=8)
    assert isinstance(error.value.__cause__, BufferError)


def test_other_devices_are_refused():
    class OnDevice:
        """A capsule whose tensor says that it lies on a CUDA device; its memory is never looked at."""

        device = "cuda:0"

        def __dlpack__(self, **kwargs):
            import ctypes

            class Tensor(ctypes.Structure):
                _fields_ = [
                    ("data", ctypes.c_void_p),
                    ("device_type", ctypes.c_int32),
                    ("device_id", ctypes.c_int32),
                    ("ndim", ctypes.c_int32),
                    ("dtype", ctypes.c_uint8 * 4),
                    ("shape", ctypes.c_void_p),
                    ("strides", ctypes.c_void_p),
                    ("byte_offset", ctypes.c_uint64),
                    ("rest", ctypes.c_void_p * 2),
                ]

            self.managed = Tensor(data=8, device_type=2, ndim=0)
            new = ctypes.pythonapi.PyCapsule_New
            new.restype = ctypes.py_object
            new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return new(ctypes.addressof(self.managed), b"dltensor", None)

    q, k, _, ids = torch_problem()
    with pytest.raises(ValueError, match="block_sparse_gqa_prefill: v is on cuda:0; expected CPU memory"):
        prefill(q, k, OnDevice(), ids, block_size=8)


def test_numpy_layouts_that_no_view_expresses():
    p = Problem("f32", batch=1, sq=8, sk=8, block=8, width=1)
    q, k, v, ids = p.inputs
    with pytest.raises(TypeError, match="q has a foreign byte order"):
        prefill(q.astype(">f4"), k, v, ids, block_size=8)
    with pytest.raises(TypeError, match="kv_indices has a foreign byte order"):
        prefill(q, k, v, ids.astype(">i4"), block_size=8)
    raw = np.zeros(8192, np.uint8)
    packed = np.ndarray(k.shape, np.float32, raw, strides=(4096, 130, 64, 4))
    with pytest.raises(ValueError, match=r"k has a stride of 130 bytes along axis 1; expected multiples of 4"):
        prefill(q, packed, v, ids, block_size=8)
    with pytest.raises(ValueError, match=r"k is not aligned"):
        prefill(q, raw[1 : 1 + k.nbytes].view(np.float32).reshape(k.shape), v, ids, block_size=8)
    with pytest.raises(ValueError, match=r"v axis 1 has negative stride"):
        prefill(q, k, v[:, ::-1], ids, block_size=8)
    with pytest.raises(ValueError, match=r"v has stride 2 in its last axis"):
        prefill(q, k, np.repeat(v, 2, axis=-1)[..., ::2], ids, block_size=8)


def test_two_opaque_bytes_are_not_bfloat16():
    q, k, v, ids = Problem("bf16", batch=1, sq=8, sk=8, block=8, width=1).inputs
    with pytest.raises(TypeError, match="q is "):
        prefill(q.view("V2"), k, v, ids, block_size=8)


@pytest.mark.parametrize("kind", ["numpy", "old dlpack", "jax"])
def test_out_that_cannot_be_written(kind):
    q, k, v, ids = Problem("f32", batch=1, sq=8, sk=8, d=8, block=8, width=1).inputs
    out = np.zeros((1, 8, 4, 8), np.float32)
    if kind == "numpy":
        target = out.view()
        target.flags.writeable = False
    elif kind == "old dlpack":
        target = OldDLPack(torch.from_numpy(out))
    else:
        target = pytest.importorskip("jax.numpy").asarray(out)
    with pytest.raises(ValueError, match="block_sparse_gqa_prefill: out is .*read-only"):
        prefill(q, k, v, ids, block_size=8, out=target)
    with pytest.raises(ValueError, match="block_sparse_gqa_prefill: out is .*read-only"):
        prefill(*(as_kind("torch", x) for x in (q, k, v, ids)), block_size=8, out=target)
    assert not out.any()


def test_read_only_numpy_through_dlpack_1_cannot_be_written():
    class ReadOnly:
        def __init__(self, array):
            self.array = array
            array.flags.writeable = False

        def __dlpack__(self, **kwargs):
            return self.array.__dlpack__(**kwargs)

    q, k, v, ids = Problem("f32", batch=1, sq=8, sk=8, d=8, block=8, width=1).inputs
    out = ReadOnly(np.zeros((1, 8, 4, 8), np.float32))
    with pytest.raises(ValueError, match="out is read-only"):
        prefill(q, k, v, ids, block_size=8, out=out)
    assert not out.array.any()
