"""A program that uses the package, fully typed: it runs, and `mypy --strict` has nothing to say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tessera
from tessera import formats
from tessera.testing import force_variant

Floats = npt.NDArray[np.float32]


def attend(q: Floats, k: Floats, v: Floats) -> Floats:
    blocks = tessera.mass_select(q, k, topk=4, block_size=16, block_q=16)
    shared: npt.NDArray[np.int32] = formats.clean_lists(blocks, 8)
    out = tessera.block_sparse_gqa_prefill(q, k, v, shared, block_size=16, block_q=16)
    assert isinstance(out, np.ndarray)
    return out


def halves(q: Floats, k: Floats, v: Floats) -> Floats:
    """The same from the states of two shards."""
    lists = np.zeros((1, -(-q.shape[1] // 64), 1), np.int32)
    states: list[tuple[Floats, Floats, Floats]] = []
    for begin in (0, 64):
        part = slice(begin, begin + 64)
        states.append(
            tessera.block_sparse_gqa_prefill_state(q, k[:, part], v[:, part], lists, block_size=64, causal=False)
        )
    return tessera.cp_merge(states, np.float32)


def main() -> None:
    q, k, v = (np.random.default_rng(n).standard_normal((1, 128, 2, 16), np.float32) for n in range(3))
    with force_variant("scalar"):
        plain = attend(q, k, v)
    np.testing.assert_allclose(attend(q, k, v), plain, rtol=1e-4, atol=1e-4)
    assert halves(q, k, v).shape == q.shape
    threads: int = tessera.get_num_threads()
    version: str = tessera.__version__
    plan: str = tessera.explain("block_sparse_gqa_prefill", q, k, v, np.zeros((1, 1, 1), np.int32))
    print(version, threads, tessera.info()["variant"], plan.splitlines()[0])


if __name__ == "__main__":
    main()
