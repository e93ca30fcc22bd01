"""One layer of MiniMax-M3 for a mixed batch over paged caches: a request that decodes, one that reads its prompt.

Per layer and step, a serving engine (1) writes the new keys, values and index keys to the slots that its scheduler gave
them, (2) selects 16 blocks per row and KV head, (3) attends. Checks its result against the reference backend.
"""

import numpy as np
import tessera

HEADS, KV_HEADS, DIM, BLOCK, PAGE = 64, 4, 128, 128, 128


def main() -> None:
    rng = np.random.default_rng(0)
    context = np.array([5000, 300], np.int32)  # tokens of each request, the new ones included
    new_rows = np.array([1, 300])  # request 0 decodes one token, request 1 reads its prompt
    cu_seqlens_q = np.concatenate(([0], np.cumsum(new_rows))).astype(np.int32)
    rows = int(cu_seqlens_q[-1])

    # The caches, with the pages of the requests anywhere in them.
    pages = -(-context // PAGE)
    table = np.full((2, pages.max()), -1, np.int32)
    free = rng.permutation(int(pages.sum()) + 8).astype(np.int32)
    for b, first in enumerate((0, pages[0])):
        table[b, : pages[b]] = free[first : first + pages[b]]
    shape = (free.size, KV_HEADS, PAGE, DIM)
    k_cache, v_cache = (rng.standard_normal(shape, np.float32) for _ in range(2))
    index_cache = rng.standard_normal((free.size, 1, PAGE, DIM), np.float32)

    # (1) What the layer's projections gave for the new rows goes to their slots.
    k, v = rng.standard_normal((2, rows, KV_HEADS, DIM), np.float32)
    index_k = rng.standard_normal((rows, 1, DIM), np.float32)
    slots = np.concatenate(
        [
            table[b, position // PAGE] * PAGE + position % PAGE
            for b in range(2)
            for position in [np.arange(context[b] - new_rows[b], context[b])]
        ]
    ).astype(np.int32)
    tessera.append_kv(k, v, slots, k_cache, v_cache)
    tessera.append_kv(index_k, None, slots, index_cache)

    # (2) 16 blocks for every row and KV head: the row's own, and the best by the largest index score in the block.
    requests = {"cu_seqlens_q": cu_seqlens_q, "page_table": table, "seqused_k": context}
    index_q = rng.standard_normal((rows, KV_HEADS, DIM), np.float32)
    blocks = tessera.msa_select(index_q, index_cache, topk=16, block_size=BLOCK, **requests)

    # (3) Attention over them.
    q = rng.standard_normal((rows, HEADS, DIM), np.float32)
    out, lse = tessera.msa_sparse_attention(q, k_cache, v_cache, blocks, return_softmax_lse=True, **requests)

    few = slice(0, 3)  # the reference is slow: the decoded row and the first two of the prompt
    some = {**requests, "cu_seqlens_q": np.array([0, 1, 3], np.int32), "q_offset": np.array([4999, 0], np.int32)}
    expected, expected_lse = tessera.msa_sparse_attention(
        q[few], k_cache, v_cache, blocks[:, few], return_softmax_lse=True, backend="reference", **some
    )
    assert np.abs(out[few] - expected).max() < 1e-4
    assert np.abs(lse[few] - expected_lse).max() < 1e-4
    print(f"blocks of the decoded row, KV head 0: {blocks[0, 0].tolist()}")
    print(f"{rows} rows attended to at most {16 * BLOCK} keys each; 3 of them checked")


if __name__ == "__main__":
    main()
