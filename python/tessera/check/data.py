"""Random tensors in NumPy, of the library's three types."""

from __future__ import annotations

import numpy as np

from tessera._tensors import numpy_dtype

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """N(0, 1) in `dtype` (bf16, f16, f32), made piece by piece, so that little more memory than the result is needed."""
    result = np.empty(shape, numpy_dtype(DTYPES[dtype]))
    flat = result.reshape(-1)
    piece = 1 << 22
    for begin in range(0, flat.size, piece):
        part = flat[begin : begin + piece]
        part[...] = rng.standard_normal(part.size, dtype=np.float32)
    return result


def with_gaps(array: np.ndarray) -> np.ndarray:
    """The same values in a view with axes 1 and 2 swapped in memory, a pitch larger than the rows, and an offset."""
    order = (0, 2, 1, *range(3, array.ndim))
    shape = [array.shape[axis] for axis in order]
    room = np.zeros((*shape[:-1], shape[-1] + 5), array.dtype)
    view = room[..., 3 : 3 + shape[-1]].transpose(order)
    view[...] = array
    return view
