"""The peak of resident memory while something runs."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def keep_freed_memory() -> None:
    """Makes glibc keep what is freed for the next allocation.

    By default each large tensor of each layer is fresh memory, which the kernel clears page by page: a sixth of the time
    of the matrix products and the element-wise operations, for every kind of attention alike. With huge pages besides,
    nothing of that is left, and little of what is kept lies idle.
    """
    if libc := _libc():
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


class Peak:
    """With `with Peak() as peak:`, `peak.mib` is then the most that the process had resident inside, in MiB.

    Linux counts it exactly once its mark is reset; where that is not permitted, a thread looks every 10 ms.
    """

    mib: float

    def __enter__(self) -> Peak:
        if libc := _libc():
            libc.malloc_trim(0)
        try:
            _CLEAR_REFS.write_text("5")
            self._sampler = None
        except OSError:
            self._done = threading.Event()
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is None:
            line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            self.mib = int(line.split()[1]) / 1024
        else:
            self._done.set()
            self._sampler.join()

    def _sample(self) -> None:
        process = psutil.Process()
        self.mib = 0.0
        while True:
            self.mib = max(self.mib, process.memory_info().rss / 2**20)
            if self._done.wait(0.01):
                return
