"""Inputs for the tests of the Python layer: the same numbers in every kind of tensor that it takes."""

from __future__ import annotations

import importlib.util

import ml_dtypes
import numpy as np
import pytest
import torch

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}

jax_missing = importlib.util.find_spec("jax") is None
KINDS = ["torch", "numpy", "dlpack", pytest.param("jax", marks=pytest.mark.skipif(jax_missing, reason="no jax"))]


class DLPackOnly:
    """A producer of DLPack 1 and of nothing else: no shape, no dtype, no from_dlpack."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __dlpack__(self, *, max_version=None, **kwargs):
        return self.tensor.__dlpack__(max_version=max_version, **kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class OldDLPack(DLPackOnly):
    """A producer from before DLPack 1."""

    def __dlpack__(self):
        return self.tensor.__dlpack__()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Shares memory."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_kind(kind: str, array: np.ndarray):
    if kind == "numpy":
        return array
    if kind == "torch":
        return to_torch(array)
    if kind == "dlpack":
        return DLPackOnly(to_torch(array))
    import jax.numpy as jnp

    return jnp.asarray(array)


def bits(tensor) -> np.ndarray:
    """The values as unsigned integers, for comparisons in which NaN equals NaN and 0 is not -0."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).numpy()
    array = np.ascontiguousarray(np.asarray(tensor))
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def same_bits(a, b) -> bool:
    return np.array_equal(bits(a), bits(b))


class Problem:
    """A small prefill with ragged tails: NumPy arrays q, k, v and lists with -1, one row of them empty."""

    def __init__(
        self, dtype="f32", batch=2, sq=37, sk=53, hq=4, hkv=2, d=16, dv=8, block=8, width=4, per_head=False, seed=0
    ):
        rng = np.random.default_rng(seed)
        self.block = block
        self.q, self.k, self.v = (
            rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])
            for shape in ((batch, sq, hq, d), (batch, sk, hkv, d), (batch, sk, hkv, dv))
        )
        heads = (hkv,) if per_head else ()
        lists = (batch, *heads, -(-sq // block))
        blocks = -(-sk // block)
        self.ids = rng.integers(-1, blocks, (*lists, width)).astype(np.int32)
        self.ids[0, ..., 1:2, :] = -1

    @property
    def inputs(self):
        return self.q, self.k, self.v, self.ids

    def inputs_as(self, kind: str):
        return tuple(as_kind(kind, x) for x in self.inputs)


def attention_bound(reference_call, q, k, v, ids, out, dtype, **options):
    """|out - exact| as a share of its bound: 2^-8 (f16: 2^-11, f32: 2^-18) of sum_j p_j |v_j|, and half an ulp.

    `reference_call` computes in double precision from exact f32 copies of the inputs.
    """
    wide = [np.asarray(x).astype(np.float32) for x in (q, k, v)]
    exact = reference_call(*wide, ids, **options).astype(np.float64)
    spread = reference_call(wide[0], wide[1], np.abs(wide[2]), ids, **options).astype(np.float64)
    digits, relative = {"bf16": (8, 2.0**-8), "f16": (11, 2.0**-11), "f32": (24, 2.0**-18)}[dtype]
    half_ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))) - digits)
    error = np.abs(np.asarray(out).astype(np.float64) - exact)
    return float(np.max(error / (relative * spread + half_ulp + 1e-30)))
