"""The attention of one Qwen4-Exp layer for a mixed batch: a request that decodes, one that reads its prompt.

Per layer and step, a serving engine (1) writes the new keys and values to the slots that its scheduler gave them and hands
the raw index keys over, which completes compressed keys, (2) selects the tokens that each row attends to, (3) attends to
them and gates the result. What comes before, projections, norms and RoPE of queries and keys, is random numbers here.
Checks its results against the reference backend, and the prompt against dense attention.
"""

import numpy as np
import tessera

HEADS, KV_HEADS, DIM = 24, 2, 256
INDEX_HEADS, INDEX_DIM, BLOCK = 4, 128, 4
PAGE = 64  # tokens: BLOCK of them to a compressed key, under one page table
CONTEXT = np.array([5000, 300], np.int32)  # tokens of each request, the new ones included
NEW = np.array([1, 300], np.int32)  # request 0 decodes one token, request 1 reads its prompt


rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


class Caches:
    """What the layer keeps of all requests, in pages that lie anywhere."""

    def __init__(self) -> None:
        pages = -(-CONTEXT // PAGE)
        self.table = np.full((2, pages.max()), -1, np.int32)
        free = rng.permutation(int(pages.sum()) + 8).astype(np.int32)
        for b, first in enumerate((0, pages[0])):
            self.table[b, : pages[b]] = free[first : first + pages[b]]
        self.k, self.v = np.zeros((2, free.size, PAGE, KV_HEADS, DIM), np.float32)
        self.index = np.zeros((free.size, PAGE // BLOCK, INDEX_DIM), np.float32)
        self.ring = np.zeros((2, BLOCK - 1, INDEX_DIM), np.float32)  # raw keys of blocks that are not complete
        self.norm_weight = 0.1 * normal(INDEX_DIM)

    def append(self, lens: np.ndarray, rows: np.ndarray) -> None:
        """Takes in `rows` more tokens of each request, of which there have been `lens`."""
        total, first = int(rows.sum()), np.concatenate(([0], np.cumsum(rows))).astype(np.int32)
        request = np.repeat(np.arange(2), rows)
        position = lens[request] + np.arange(total) - first[request]
        slots = (self.table[request, position // PAGE] * PAGE + position % PAGE).astype(np.int32)
        # append_kv wants heads before slots: views.
        k, v = normal(2, total, KV_HEADS, DIM)
        tessera.append_kv(k, v, slots, self.k.swapaxes(1, 2), self.v.swapaxes(1, 2))
        tessera.qsa_append_keys(
            normal(total, INDEX_DIM), lens, self.norm_weight, self.ring, self.index,
            cu_seqlens_q=first, page_table=self.table, block_size=BLOCK,
        )  # fmt: skip

    def of_request(self, b: int) -> tuple[np.ndarray, np.ndarray]:
        """[1, tokens, Hkv, D] in order."""
        k, v = (x[self.table[b]].reshape(1, -1, KV_HEADS, DIM)[:, : CONTEXT[b]] for x in (self.k, self.v))
        return k, v


def rows_of(first: int, *counts: int) -> dict[str, np.ndarray]:
    """Which rows each request has, and that they are its tokens from `CONTEXT - NEW + first` on."""
    starts = CONTEXT - NEW + first
    positions = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
    bounds = np.concatenate(([0], np.cumsum(counts)))
    return {"cu_seqlens_q": bounds.astype(np.int32), "query_positions": positions.astype(np.int32)}


def main() -> None:
    caches = Caches()
    caches.append(np.zeros(2, np.int32), CONTEXT - NEW)  # steps of the past

    # (1) What the layer's projections gave for the new tokens.
    caches.append(CONTEXT - NEW, NEW)
    rows = int(NEW.sum())
    q, gate = normal(2, rows, HEADS, DIM)
    index_q = normal(rows, INDEX_HEADS, INDEX_DIM)
    requests = {"block_table": caches.table, "seq_lens_k": CONTEXT}

    # (2) The tokens of the 512 best blocks of 4 that a row sees, and the open block's: 2,051 at most.
    tokens = tessera.qsa_select_tokens(index_q, caches.index, budget=2048, **requests, **rows_of(0, *NEW))

    # (3) Attention over them, times the sigmoid of the gate. The output projection is next.
    out, lse = tessera.qsa_sparse_attention(
        q, caches.k, caches.v, tokens, gate=gate, return_lse=True, **requests, **rows_of(0, *NEW)
    )

    few = [0, 1, 2, 3]  # the reference is slow: the decoded row, and the first three of the prompt
    some = {**requests, **rows_of(0, 1, 3), "backend": "reference"}
    assert np.array_equal(tessera.qsa_select_tokens(index_q[few], caches.index, **some), tokens[few])
    expected, expected_lse = tessera.qsa_sparse_attention(
        q[few], caches.k, caches.v, tokens[few], gate=gate[few], return_lse=True, **some
    )
    assert np.abs(out[few] - expected).max() < 1e-4
    assert np.abs(lse[few] - expected_lse).max() < 1e-4

    # All 300 tokens of the prompt fit into the budget.
    dense = tessera.dense_gqa_reference(
        q[None, 1:], *caches.of_request(1), np.zeros((1, 1, 1), np.int32), block_size=int(CONTEXT[1])
    )
    assert np.abs(out[1:] - dense[0] / (1 + np.exp(-gate[1:]))).max() < 1e-4

    print(f"the decoded row attends to {(tokens[0] >= 0).sum()} of {CONTEXT[0]} tokens: {tokens[0, :8].tolist()} ...")
    print(f"{rows} rows; 4 of them checked against the reference, those of the prompt against dense attention")


if __name__ == "__main__":
    main()
