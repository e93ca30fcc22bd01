"""What the operators return and change, said once.

With the signatures of the functions themselves this is all that `tessera.torch` needs to make `torch.ops.tessera` of
them: schemas, fake implementations, `_out` forms. Neither torch nor the compiled module is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Shape = tuple[Any, ...]  # sizes, None for one that only the values in the tensors tell


class Arguments:
    """The arguments of a call by name."""

    def __init__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class Result(NamedTuple):
    name: str  # that of the argument which takes a tensor to write into, or of its part in the tuple `out`
    dtype: str  # a dtype, or the argument whose dtype it has or is
    shape: Callable[[Arguments], Shape]


class Operator(NamedTuple):
    results: tuple[Result, ...] = ()
    changes: tuple[str, ...] = ()  # arguments that are written in place
    has_out: bool = True


# Arguments that are tuples of tensors, or with a * lists of such tuples: the names of the parts.
PARTS = {"screen": "codes scales", "states": "*o l m", "partials": "*out lse"}


def _ceil_div(a: Any, b: Any) -> Any:
    return (a + b - 1) // b


def requests(a: Arguments) -> Any:
    """How many requests a call with a q_offset has."""
    if getattr(a, "cu_seqlens_q", None) is not None:
        return a.cu_seqlens_q.shape[0] - 1
    if getattr(a, "page_table", None) is not None:
        return a.page_table.shape[0]
    return a.q.shape[0] if a.q.ndim == 4 else 1


# ---- Attention: rows [..., D], values [..., Dv] or packed [..., Dv, e] ----


def _attention(q: str, v: str) -> Operator:
    def rows(a: Arguments) -> Shape:
        return tuple(getattr(a, q).shape[:-1])

    def out(a: Arguments) -> Shape:
        values = getattr(a, v).shape
        return (*rows(a), values[min(len(values), 4) - 1])

    return Operator((Result("out", q, out), Result("lse", "float32", rows)))


def _state() -> Operator:
    out, lse = _attention("q", "v").results
    sums = (Result(name, "float32", lse.shape) for name in ("l", "m"))
    return Operator((Result("o", "float32", out.shape), *sums))


# ---- Selection and scores ----


def _one(dtype: str, shape: Callable[[Arguments], Shape]) -> Operator:
    return Operator((Result("out", dtype, shape),))


def _lists_of_query_blocks(a: Arguments) -> Shape:
    heads = a.k.shape[2 if a.page_table is None else 1]
    return (a.q.shape[0], heads, _ceil_div(a.q.shape[1], a.block_q), a.topk)


def _msa_rows(a: Arguments, entries: Any) -> Shape:
    *batch, rows, heads, _ = a.q.shape
    return (*batch, 1 if a.reduce_heads else heads, rows, entries)


def _msa_scores(a: Arguments) -> Shape:
    batch = a.cu_seqlens_k is None and a.seqused_k is None
    return _msa_rows(a, _ceil_div(a.k.shape[1], a.block_size) if batch else None)


def _qsa_scores(a: Arguments) -> Shape:
    pages = 1 if a.block_table is None else a.block_table.shape[1]
    return (*a.q_idx.shape[:-2], a.block_keys.shape[1] * pages)


def _qsa_blocks(a: Arguments) -> Shape:
    return (*a.q_idx.shape[:-2], a.budget // a.block_size)


def _with_tail(blocks: Any, a: Arguments) -> Any:
    return blocks * a.block_size + a.block_size - 1


def _qsa_tokens(a: Arguments) -> Shape:
    *rows, blocks = _qsa_blocks(a)
    return (*rows, _with_tail(blocks, a))


def _rows_of_requests(a: Arguments) -> Any:
    return a.q.shape[0] * (a.q.shape[1] if a.q.ndim == 4 else 1)


# ---- The cache ----


def _packed_cache() -> Operator:
    def pages(a: Arguments) -> Any:
        return _ceil_div(a.k.shape[1], a.page_size)

    def units(a: Arguments, size: Any) -> tuple[Any, int]:
        e = 4 // a.k.element_size()
        return _ceil_div(size, e), e

    def keys(a: Arguments) -> Shape:
        features, e = units(a, a.k.shape[3])
        return (a.k.shape[0] * pages(a), a.k.shape[2], features, a.page_size, e)

    def values(a: Arguments) -> Shape:
        slots, e = units(a, a.page_size)
        return (a.k.shape[0] * pages(a), a.k.shape[2], slots, a.v.shape[3], e)

    return Operator(
        (
            Result("k_cache", "k", keys),
            Result("v_cache", "k", values),
            Result("page_table", "int32", lambda a: (a.k.shape[0], pages(a))),
        ),
        has_out=False,
    )


OPERATORS = {
    "append_kv": Operator(changes=("k_cache", "v_cache")),
    "block_sparse_attention_single_q": _attention("q", "v"),
    "block_sparse_gqa_prefill": _attention("q", "v"),
    "block_sparse_gqa_prefill_state": _state(),
    "cp_merge": _one("output_dtype", lambda a: tuple(a.states_o[0].shape)),
    "mass_select": _one("int32", _lists_of_query_blocks),
    "merge_states": Operator(
        (
            Result("out", "partials_out", lambda a: tuple(a.partials_out[0].shape)),
            Result("lse", "float32", lambda a: tuple(a.partials_lse[0].shape)),
        )
    ),
    "moba_select": _one("int32", _lists_of_query_blocks),
    "msa_block_scores": _one("float32", _msa_scores),
    "msa_select": _one("int32", lambda a: _msa_rows(a, a.topk)),
    "msa_sparse_attention": _attention("q", "v"),
    "msa_sparse_decode_attention": _attention("q", "v"),
    "pack_kv_blocks": _packed_cache(),
    "qsa_append_keys": Operator(changes=("ring", "cache")),
    "qsa_compress_keys": _one(
        "raw_keys", lambda a: (a.raw_keys.shape[0], a.raw_keys.shape[1] // a.block_size, a.raw_keys.shape[2])
    ),
    "qsa_expand_blocks": _one("int32", lambda a: (*a.block_ids.shape[:-1], _with_tail(a.block_ids.shape[-1], a))),
    "qsa_indexer_mqa_score": _one("float32", _qsa_scores),
    "qsa_mqa_decode": _one("float32", lambda a: (_rows_of_requests(a), a.max_model_len)),
    "qsa_mqa_prefill": _one("float32", lambda a: (a.q.shape[0], a.k.shape[0])),
    "qsa_screen_keys": Operator(
        (
            Result("codes", "int8", lambda a: tuple(a.keys.shape)),
            Result("scales", "float32", lambda a: tuple(a.keys.shape[:-1])),
        )
    ),
    "qsa_select": _one("int32", _qsa_blocks),
    "qsa_select_tokens": _one("int32", _qsa_tokens),
    "qsa_sparse_attention": _attention("query", "value"),
    "topk_blocks": _one("int32", lambda a: (*a.scores.shape[:-1], a.k)),
}


def trace_as_torch_op(function: Callable[..., Any]) -> None:
    """Makes torch.compile record calls of the function as calls of its torch op; the function itself is not changed."""

    def in_graph(*args: Any, **options: Any) -> Any:
        from tessera.torch import call

        return call(function.__name__, args, options)

    function._torchdynamo_inline = in_graph  # what Dynamo reads in place of the function
