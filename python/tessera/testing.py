"""For tests and for `tessera check`: choosing the kernel variant by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tessera import _core


@contextmanager
def force_variant(name: str) -> Iterator[None]:
    """Calls of this thread inside the `with` block use the kernel variant `name` and no other.

    Args:
        name: "scalar", "avx2", "avx512", "avx512bf16", "neon" or "neonbf16".

    Calls raise ValueError for a name that does not exist, NotImplementedError for a variant that this CPU does not have
    or that does not take the dtype.
    """
    previous = _core.force_variant(name)
    try:
        yield
    finally:
        _core.force_variant(previous)
