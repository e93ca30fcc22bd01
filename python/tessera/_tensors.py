"""Kinds of tensors: making one of a given kind, and turning results into the kind of the inputs.

torch is never imported here: a torch tensor can only be met when the caller has imported torch already. NumPy, which
takes ten times as long to import as all of tessera, is imported by the first call that needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_FLOATS = ("bfloat16", "float16", "float32")


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An uninitialised result: a torch tensor for torch, else a NumPy array. Called by the compiled module."""
    if is_torch(like):
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype))
    import numpy as np

    return np.empty(shape, numpy_dtype(dtype))


def give_back(result: Any, like: Any) -> Any:
    """A result of `empty` as the kind of `like`, sharing memory. Called by the compiled module.

    Producers that are neither torch nor NumPy are asked for `from_dlpack`, in their array-API namespace or else in
    their top-level package; without one the result stays a NumPy array.
    """
    if is_torch(like) or is_numpy(like):
        return result
    if hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
    else:
        namespace = sys.modules.get(type(like).__module__.partition(".")[0])
    from_dlpack = getattr(namespace, "from_dlpack", None)
    if from_dlpack is None:
        return result
    from tessera import _core

    return from_dlpack(_core.as_dlpack(result))


def dtype_name(dtype: Any) -> str | None:
    """The name of a NumPy scalar type, NumPy dtype or torch dtype; None for anything else."""
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    import numpy as np

    try:
        return np.dtype(dtype).name
    except TypeError:
        return None


def float_dtype_name(op: str, argument: str, dtype: Any) -> str:
    """The name of a dtype that a result may have."""
    name = dtype_name(dtype) or repr(dtype)
    if name not in _FLOATS:
        raise TypeError(f"{op}: {argument} is {name}; expected {', '.join(_FLOATS)}")
    return name


def to_numpy(value: Any) -> np.ndarray:
    """For host helpers only: a NumPy array that shares memory where NumPy can; torch's bfloat16 widened to float32."""
    if is_torch(value):
        value = value.detach()
        if value.dtype == sys.modules["torch"].bfloat16:
            value = value.float()
        return value.numpy()
    import numpy as np

    if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def from_numpy(result: np.ndarray, like: Any) -> Any:
    """The opposite of `to_numpy`: the array as the kind of `like`."""
    if is_torch(like):
        return sys.modules["torch"].from_numpy(result)
    return give_back(result, like)
