"""Writing the paged KV cache: append_kv and pack_kv_blocks, and attention over what they wrote."""

import ml_dtypes
import numpy as np
import pytest
import tessera
import torch
from sequences import Requests
from tensors import DTYPES, KINDS, OldDLPack, as_kind, bits, same_bits, to_torch

HOSTILE = [-1, -(2**31), 2**31 - 1]
BACKENDS = ["native", "reference"]
LAYOUTS = ["rows", "packed"]


def elements(dtype) -> int:
    return 4 // np.dtype(dtype).itemsize


def units_first(pages: np.ndarray) -> np.ndarray:
    """Keys [P, H, ps, D] in the packed layout, the last unit filled up with zeros."""
    e = elements(pages.dtype)
    wide = np.pad(pages, ((0, 0), (0, 0), (0, 0), (0, -pages.shape[3] % e)))
    p, h, ps, d = wide.shape
    return np.ascontiguousarray(wide.reshape(p, h, ps, d // e, e).transpose(0, 1, 3, 2, 4))


def pairs_of_slots(pages: np.ndarray) -> np.ndarray:
    """Values [P, H, ps, D] in the packed layout, the last pair filled up with zeros."""
    e = elements(pages.dtype)
    long = np.pad(pages, ((0, 0), (0, 0), (0, -pages.shape[2] % e), (0, 0)))
    p, h, ps, d = long.shape
    return np.ascontiguousarray(long.reshape(p, h, ps // e, e, d).transpose(0, 1, 2, 4, 3))


def random(rng, shape, dtype):
    return rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])


class Rows:
    """n rows for hostile and repeated slots of a cache full of sevens."""

    def __init__(self, dtype="bf16", n=50, heads=3, d=16, dv=8, pages=4, page_size=8, seed=0):
        rng = np.random.default_rng(seed)
        self.k, self.v = random(rng, (n, heads, d), dtype), random(rng, (n, heads, dv), dtype)
        slots = rng.integers(0, pages * page_size, n)
        slots[::7] = rng.choice([*HOSTILE, pages * page_size], slots[::7].size)
        self.slots = slots.astype(np.int32)
        self.pages = [np.full((pages, heads, page_size, x.shape[2]), 7, x.dtype) for x in (self.k, self.v)]

    @property
    def inputs(self):
        return self.k, self.v, self.slots

    def caches(self, layout):
        if layout == "rows":
            return [x.copy() for x in self.pages]
        return [units_first(self.pages[0]), pairs_of_slots(self.pages[1])]

    def expected(self, layout):
        k, v = (x.copy() for x in self.pages)
        p, _, ps, _ = k.shape
        for i, slot in enumerate(self.slots):
            if 0 <= slot < p * ps:
                k[slot // ps, :, slot % ps], v[slot // ps, :, slot % ps] = self.k[i], self.v[i]
        return [k, v] if layout == "rows" else [units_first(k), pairs_of_slots(v)]


# ---- append_kv ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [{}, {"d": 7, "dv": 9, "page_size": 5}, {"d": 1, "dv": 1, "page_size": 1}], ids=str)
def test_append_writes_the_named_slots_alone(dtype, layout, backend, sizes):
    rows = Rows(dtype, **sizes)
    caches = rows.caches(layout)
    assert tessera.append_kv(*rows.inputs, *caches, backend=backend) is None
    for got, want in zip(caches, rows.expected(layout), strict=True):
        assert same_bits(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_append_writes_keys_alone(dtype, layout, backend):
    rows = Rows(dtype)
    cache, want = rows.caches(layout)[0], rows.expected(layout)[0]
    assert tessera.append_kv(rows.k, None, rows.slots, cache, backend=backend) is None
    assert same_bits(cache, want)


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_append_changes_caches_of_every_kind_in_place(dtype, kind):
    rows = Rows(dtype)
    caches = rows.caches("packed")
    tessera.append_kv(*(as_kind(kind, x) for x in rows.inputs), *(as_kind(kind, x) for x in caches))
    assert all(map(same_bits, caches, rows.expected("packed")))


def test_append_to_views():
    rows = Rows("f32")
    want = rows.expected("rows")
    both = np.full((4, 8, 3, 24), 7, np.float32)  # [P, ps, Hkv, D + Dv], as some engines keep them
    k_cache, v_cache = both.swapaxes(1, 2)[..., :16], both.swapaxes(1, 2)[..., 16:]
    heads_first = np.ascontiguousarray(rows.k.swapaxes(0, 1)).swapaxes(0, 1)
    tessera.append_kv(heads_first, rows.v, np.repeat(rows.slots, 2)[::2], k_cache, v_cache)
    assert same_bits(k_cache, want[0])
    assert same_bits(v_cache, want[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_do_not_depend_on_threads(layout):
    rows = Rows("f16", n=3000, heads=2, d=64, dv=72, pages=70, page_size=24)
    before = tessera.get_num_threads()
    try:
        for threads in (1, 2, 5):
            tessera.set_num_threads(threads)
            caches = rows.caches(layout)
            tessera.append_kv(*rows.inputs, *caches)
            assert all(map(same_bits, caches, rows.expected(layout)))
    finally:
        tessera.set_num_threads(before)


ERRORS = [
    # what is changed, exception, message
    (lambda a: {"k": a["k"][0]}, ValueError, r"k has 2 axes; expected \[n, Hkv, D\]"),
    (lambda a: {"v": a["v"][:, :1]}, ValueError, r"v .*axis 1; expected 3 \(Hkv of k\)"),
    (lambda a: {"slots": a["slots"][1:]}, ValueError, r"slots .*axis 0; expected 50 \(n of k\)"),
    (lambda a: {"slots": a["slots"][:, None]}, ValueError, "slots has 2 axes"),
    (lambda a: {"k": np.zeros((), a["k"].dtype)}, ValueError, "k has no axes"),
    (lambda a: {"k_cache": np.zeros((), a["k"].dtype)}, ValueError, "k_cache has no axes"),
    (lambda a: {"k_cache": a["k_cache"][0]}, ValueError, r"k_cache has 3 axes; expected \[P, Hkv, ps, D\] or"),
    (lambda a: {"k_cache": a["k_cache"][..., :8]}, ValueError, r"k_cache .*axis 3; expected 16 \(D of k\)"),
    (lambda a: {"v_cache": a["v_cache"][:, :, :4]}, ValueError, r"v_cache .*axis 2; expected 8 \(ps of k_cache\)"),
    (lambda a: {"k_cache": units_first(a["k_cache"])}, ValueError, "v_cache has 4 axes; expected .*as k_cache is packed"),
    (lambda a: {"v_cache": pairs_of_slots(a["v_cache"])}, ValueError, "v_cache has 5 axes"),
    (lambda a: {"v_cache": np.broadcast_to(a["v_cache"][:1], a["v_cache"].shape)}, ValueError, "v_cache is read-only"),
    (lambda a: {"k": a["k_cache"][0].swapaxes(0, 1)[:, :, :16], "v": a["v"][:8], "slots": a["slots"][:8]}, ValueError,
     "k_cache overlaps k"),
    (lambda a: {"v_cache": a["k_cache"][..., :8]}, ValueError, "v_cache overlaps k_cache"),
    (lambda a: {"k_cache": a["k_cache"].astype(np.float16)}, TypeError, "k_cache is float16 but k is float32"),
    (lambda a: {"v": a["v"].astype(np.float64)}, TypeError, "v is float64; expected bfloat16, float16 or float32"),
    (lambda a: {"slots": a["slots"].astype(np.int64)}, TypeError, "slots is int64; expected int32"),
    (lambda a: {"slots": a["slots"].tolist()}, TypeError, "slots is of type list"),
    (lambda a: {"k_cache": None}, TypeError, "k_cache is of type NoneType"),
    (lambda a: {"v": None}, ValueError, "v is missing; expected both of v and v_cache, or neither"),
    (lambda a: {"v_cache": None}, ValueError, "v_cache is missing; expected both of v and v_cache, or neither"),
    (lambda a: {"backend": "auto"}, ValueError, "backend is 'auto'"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("change", "exception", "message"), ERRORS, ids=[x[2] for x in ERRORS])
def test_bad_calls_write_nothing(change, exception, message, backend):
    rows = Rows("f32")
    caches = rows.caches("rows")
    arguments = dict(zip(("k", "v", "slots", "k_cache", "v_cache"), (*rows.inputs, *caches), strict=True))
    with pytest.raises(exception, match="^append_kv: " + message):
        tessera.append_kv(**{**arguments, "backend": backend, **change(arguments)})
    assert all((bits(x) == bits(np.float32(7))).all() for x in caches)


def test_packed_caches_are_dense_inside():
    rows = Rows("bf16")
    k_cache, v_cache = rows.caches("packed")
    wide = np.zeros((*k_cache.shape[:3], 16, 2), k_cache.dtype)
    with pytest.raises(ValueError, match=r"append_kv: k_cache has stride 4 in axis 3; its last two axes are dense"):
        tessera.append_kv(*rows.inputs, wide[..., ::2, :], v_cache)
    inside, dense = wide[..., :8, :], np.zeros_like(k_cache)
    for cache in (inside, dense):
        tessera.append_kv(*rows.inputs, cache, v_cache)
    assert same_bits(inside, dense)
    assert not wide[..., 8:, :].any()


def test_caches_that_cannot_be_written_are_refused():
    rows = Rows("f32")
    k_cache, v_cache = (to_torch(x) for x in rows.caches("rows"))
    with pytest.raises(ValueError, match="append_kv: k_cache is exported by a DLPack before 1"):
        tessera.append_kv(*rows.inputs, OldDLPack(k_cache), v_cache)
    with pytest.raises(NotImplementedError, match="append_kv: v_cache requires a gradient"):
        tessera.append_kv(*rows.inputs, k_cache, v_cache.requires_grad_())


# ---- pack_kv_blocks ----


def batch(dtype="bf16", requests=2, tokens=21, heads=3, d=16, dv=8):
    rng = np.random.default_rng(0)
    return random(rng, (requests, tokens, heads, d), dtype), random(rng, (requests, tokens, heads, dv), dtype)


def pages_of(x: np.ndarray, page_size: int) -> np.ndarray:
    """[B, Sk, H, D] as [B * ceil(Sk / ps), H, ps, D], zeros behind the last token."""
    long = np.pad(x, ((0, 0), (0, -x.shape[1] % page_size), (0, 0), (0, 0)))
    b, slots, h, d = long.shape
    return long.reshape(b * slots // page_size, page_size, h, d).swapaxes(1, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 3, 8, 21, 128])
@pytest.mark.parametrize("sizes", [{}, {"d": 7, "dv": 9}, {"tokens": 16}, {"requests": 0}, {"tokens": 0}], ids=str)
def test_pack_is_the_packed_layout_of_pages_in_order(dtype, page_size, backend, sizes):
    k, v = batch(dtype, **sizes)
    k_cache, v_cache, table = tessera.pack_kv_blocks(k, v, page_size=page_size, backend=backend)
    pages = -(-k.shape[1] // page_size)
    assert same_bits(k_cache, units_first(pages_of(k, page_size)))
    assert same_bits(v_cache, pairs_of_slots(pages_of(v, page_size)))
    assert table.dtype == np.int32
    assert np.array_equal(table, np.arange(k.shape[0] * pages).reshape(k.shape[0], pages))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack_returns_the_kind_it_was_given(dtype, kind):
    k, v = batch(dtype)
    want = tessera.pack_kv_blocks(k, v)
    got = tessera.pack_kv_blocks(as_kind(kind, k), as_kind(kind, v))
    kinds = {"torch": torch.Tensor, "numpy": np.ndarray, "dlpack": np.ndarray}
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        assert isinstance(x, kinds.get(kind, type(as_kind(kind, k))))
        assert same_bits(x, y)


def test_pack_reads_strides():
    k, v = batch("bf16")
    want = tessera.pack_kv_blocks(k, v, page_size=8)
    heads_first = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (k, v)]
    assert all(map(same_bits, tessera.pack_kv_blocks(*heads_first, page_size=8), want))
    one = np.broadcast_to(k[:1], k.shape)
    assert same_bits(tessera.pack_kv_blocks(one, v, page_size=8)[0][3:], want[0][:3])


@pytest.mark.parametrize(
    ("change", "exception", "message"),
    [
        (lambda k, v: (k[0], v), ValueError, r"k has 3 axes; expected \[B, Sk, Hkv, D\]"),
        (lambda k, v: (k, v[0]), ValueError, r"v has 3 axes; expected \[B, Sk, Hkv, Dv\]"),
        (lambda k, v: (k, v[:1]), ValueError, "v has size 1 in axis 0; expected 2 as k"),
        (lambda k, v: (k, v[:, :5]), ValueError, "v has size 5 in axis 1; expected 21 as k"),
        (lambda k, v: (k, v[:, :, :1]), ValueError, "v has size 1 in axis 2; expected 3 as k"),
        (lambda k, v: (k[..., ::2], v), ValueError, "k has stride 2 in its last axis"),
        (lambda k, v: (k[..., :0], v), ValueError, "k and v need at least one feature"),
        (lambda k, v: (k, v.astype(np.float16)), TypeError, "v is float16 but k is bfloat16"),
        (lambda k, v: (k[:0], v[:0].astype(np.float16)), TypeError, "v is float16 but k is bfloat16"),
        (lambda k, v: (k.astype(np.int32), v.astype(np.int32)), TypeError, "k is int32"),
        (lambda k, v: (k, None), TypeError, "v is of type NoneType"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_pack_refuses(change, exception, message):
    with pytest.raises(exception, match="^pack_kv_blocks: " + message):
        tessera.pack_kv_blocks(*change(*batch()))


@pytest.mark.parametrize("page_size", [0, -8, 1 << 70])
def test_pack_refuses_page_sizes(page_size):
    with pytest.raises(ValueError, match="^pack_kv_blocks: page_size is"):
        tessera.pack_kv_blocks(*batch(), page_size=page_size)


def test_bfloat16_of_numpy_is_ml_dtypes():
    k_cache, v_cache, _ = tessera.pack_kv_blocks(*batch("bf16"))
    assert k_cache.dtype == v_cache.dtype == ml_dtypes.bfloat16


# ---- Attention over what they wrote ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", [1, 8, 20, 64])
def test_attention_over_appended_pages_has_the_bits_of_packed_keys(dtype, page_size):
    p = Requests(dtype, d=24, dv=9)
    want = tessera.msa_sparse_attention(*p.inputs, **p.packed, return_softmax_lse=True)
    k_pages, v_pages, tables = p.pages(page_size)
    nan = [np.full_like(x, np.nan) for x in (units_first(k_pages), pairs_of_slots(v_pages))]
    slots = np.concatenate(
        [tables["page_table"][b, np.arange(n) // page_size] * page_size + np.arange(n) % page_size
         for b, n in enumerate(p.keys)]
    )  # fmt: skip
    tessera.append_kv(p.k, p.v, slots.astype(np.int32), *nan)
    for backend in BACKENDS:
        got = tessera.msa_sparse_attention(
            p.q,
            *nan,
            p.ids,
            cu_seqlens_q=p.cu_q,
            block_size=p.block,
            **tables,
            return_softmax_lse=True,
            backend=backend,
        )
        if backend == "native":
            assert all(map(same_bits, got, want))
        else:
            oracle = tessera.msa_sparse_attention(*p.inputs, **p.packed, return_softmax_lse=True, backend=backend)
            assert all(map(same_bits, got, oracle))


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_over_packed_blocks_has_the_bits_of_a_batch(dtype):
    rng = np.random.default_rng(0)
    k, v = batch(dtype, tokens=53)
    q = random(rng, (2, 37, 6, 16), dtype)
    ids = rng.integers(-1, 7, (2, 5, 4)).astype(np.int32)
    want = tessera.block_sparse_gqa_prefill(q, k, v, ids, block_size=8, return_lse=True)
    for page_size in (1, 3, 8, 64):
        k_cache, v_cache, table = tessera.pack_kv_blocks(k, v, page_size=page_size)
        used = np.full(2, 53, np.int32)
        got = tessera.block_sparse_gqa_prefill(
            q, k_cache, v_cache, ids, block_size=8, page_table=table, seqused_k=used, return_lse=True
        )
        assert all(map(same_bits, got, want)), page_size
