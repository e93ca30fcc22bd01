"""Compressed keys and token lists: qsa_compress_keys, qsa_append_keys and qsa_expand_blocks."""

import ml_dtypes
import numpy as np
import pytest
import tessera
import torch
from tensors import DTYPES, KINDS, as_kind, bits, same_bits, to_torch

BACKENDS = ["native", "reference"]
I32 = np.iinfo(np.int32)


def random(rng, shape, dtype):
    return rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])


def prompts(dtype="bf16", requests=2, tokens=41, d=32, seed=0):
    """Raw keys and norm weights."""
    rng = np.random.default_rng(seed)
    return random(rng, (requests, tokens, d), dtype), random(rng, (d,), dtype) * DTYPES[dtype](0.25)


def modelling_code(raw, weight, rotary_dim, theta=1e7, eps=1e-6, block=4):
    """Block keys as the public Qwen4-Exp modelling code computes them in torch, in the dtype of the keys."""

    def rotate_half(x):
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)

    blocks = raw.shape[1] // block
    x = raw[:, : blocks * block].unflatten(1, (blocks, block)).float().mean(dim=2).to(raw.dtype)
    norm = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    x = (norm * (1.0 + weight.float())).type_as(x)
    frequency = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = (torch.arange(blocks)[:, None] * block * frequency).repeat(1, 2)
    cos, sin = angle.cos().to(raw.dtype), angle.sin().to(raw.dtype)
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    return torch.cat((turned * cos + rotate_half(turned) * sin, rest), dim=-1)


# ---- qsa_compress_keys ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_compress_is_the_modelling_code(dtype):
    raw, weight = prompts(dtype, tokens=402, d=128)
    want = modelling_code(to_torch(raw), to_torch(weight), 64).float().numpy()
    got = tessera.qsa_compress_keys(raw, weight, round_intermediates=True)
    assert got.shape == (2, 100, 128)
    assert got.dtype == raw.dtype
    got = got.astype(np.float32)
    if dtype == "f32":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    else:  # a root that differs by an f32 unit rounds the other way now and then
        assert (got == want).mean() > 0.995
        np.testing.assert_allclose(got, want, rtol=0, atol=0.05 if dtype == "bf16" else 0.006)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compress_returns_the_kind_it_was_given(dtype, kind):
    raw, weight = prompts(dtype)
    want = tessera.qsa_compress_keys(raw, weight, rotary_dim=16)
    got = tessera.qsa_compress_keys(as_kind(kind, raw), as_kind(kind, weight), rotary_dim=16)
    kinds = {"torch": torch.Tensor, "numpy": np.ndarray, "dlpack": np.ndarray}
    assert isinstance(got, kinds.get(kind, type(as_kind(kind, raw))))
    assert same_bits(got, want)


def test_compress_into_out_and_from_views():
    raw, weight = prompts("f16")
    want = tessera.qsa_compress_keys(raw, weight, rotary_dim=8)
    room = np.full((10, 2, 40), 7, np.float16)
    out = room[:, :, 4:36].swapaxes(0, 1)
    tokens_first = np.ascontiguousarray(raw.swapaxes(0, 1)).swapaxes(0, 1)
    assert tessera.qsa_compress_keys(tokens_first, np.repeat(weight, 2)[::2], rotary_dim=8, out=out) is out
    assert same_bits(out, want)
    assert (room[:, :, :4] == 7).all()
    assert (room[:, :, 36:] == 7).all()


def test_compress_turns_by_positions_and_cosines():
    raw, weight = prompts("f32")
    positions = np.broadcast_to(np.arange(41, dtype=np.int32) + 1000, (2, 41))
    moved = tessera.qsa_compress_keys(raw, weight, positions=positions, rotary_dim=16)
    assert not same_bits(moved, tessera.qsa_compress_keys(raw, weight, rotary_dim=16))
    angle = positions[:, :, None] * 1e7 ** -(np.arange(8) / 8)
    tables = [
        np.concatenate([f(angle)] * 2, axis=-1).astype(np.float32) for f in (np.cos, np.sin)
    ]  # as models have them
    cos, sin = (x[:, :40:4, :8] for x in tables)
    given = tessera.qsa_compress_keys(raw, weight, cos=cos, sin=sin, rotary_dim=16)
    np.testing.assert_allclose(given, moved, rtol=1e-5, atol=1e-5)
    plain = tessera.qsa_compress_keys(raw, weight, rotary_dim=0)
    assert same_bits(plain[..., 16:], moved[..., 16:])


@pytest.mark.parametrize("position", [2**20, 2**24 + 1, 2**31 - 1, -5])
def test_angles_at_large_positions(position):
    raw, weight = prompts("f32", requests=1, tokens=4, d=64)
    options = {"positions": np.full((1, 4), position, np.int32), "rotary_dim": 64}
    got, want = (tessera.qsa_compress_keys(raw, weight, **options, backend=b) for b in BACKENDS)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


COMPRESS_ERRORS = [
    # what is changed, exception, message
    (lambda a: {"raw_keys": a["raw_keys"][0]}, ValueError, r"raw_keys has 2 axes; expected \[B, S, D\]"),
    (lambda a: {"raw_keys": a["raw_keys"][..., ::2]}, ValueError, "raw_keys has stride 2 in its last axis"),
    (lambda a: {"raw_keys": a["raw_keys"].astype(np.float64)}, TypeError, "raw_keys is float64; expected bfloat16"),
    (lambda a: {"raw_keys": None}, TypeError, "raw_keys is of type NoneType"),
    (lambda a: {"norm_weight": a["norm_weight"][1:]}, ValueError, r"norm_weight .*axis 0; expected 32 \(D of raw_keys\)"),
    (lambda a: {"norm_weight": a["norm_weight"].astype(np.float16)}, TypeError, "norm_weight is float16 but raw_keys is"),
    (lambda a: {"positions": np.zeros((2, 40), np.int32)}, ValueError, r"positions .*axis 1; expected 41 \(S of raw_keys\)"),
    (lambda a: {"positions": np.zeros((2, 41))}, TypeError, "positions is float64; expected int32"),
    (lambda a: {"cos": np.zeros((2, 10, 8), np.float32)}, ValueError, "sin .* is missing"),
    (lambda a: {"cos": np.zeros((2, 10, 8), np.float16)}, TypeError, "cos is float16; expected float32"),
    (lambda a: {"block_size": 0}, ValueError, "block_size is 0; expected at least 1"),
    (lambda a: {"block_size": 2.0}, TypeError, "block_size is 2.0; expected an int"),
    (lambda a: {"eps": -1.0}, ValueError, "eps is -1"),
    (lambda a: {"eps": "small"}, TypeError, "eps is 'small'; expected a float"),
    (lambda a: {"rotary_dim": 64}, ValueError, "rotary_dim is 64; expected an even number from 0 to D, 32"),
    (lambda a: {"rotary_dim": 7}, ValueError, "rotary_dim is 7; expected an even number"),
    (lambda a: {"rope_theta": 0}, ValueError, "rope_theta is 0"),
    (lambda a: {"round_intermediates": 1}, TypeError, "round_intermediates is 1; expected a bool"),
    (lambda a: {"out": np.zeros((2, 9, 32), np.float32)}, ValueError, r"out .*axis 1; expected 10 \(S / block_size\)"),
    (lambda a: {"out": a["raw_keys"][:, :10]}, ValueError, "out overlaps raw_keys"),
    (lambda a: {"backend": "auto"}, ValueError, "backend is 'auto'"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("change", "exception", "message"), COMPRESS_ERRORS, ids=[x[2] for x in COMPRESS_ERRORS])
def test_compress_refuses(change, exception, message, backend):
    raw, weight = prompts("f32")
    out = np.full((2, 10, 32), 7, np.float32)
    arguments = {"raw_keys": raw, "norm_weight": weight, "rotary_dim": 16, "out": out, "backend": backend}
    with pytest.raises(exception, match="^qsa_compress_keys: " + message):
        tessera.qsa_compress_keys(**{**arguments, **change(arguments)})
    assert (out == 7).all()


def test_compress_refuses_more_features_than_it_has_room_for():
    with pytest.raises(NotImplementedError, match="qsa_compress_keys: raw_keys have D 4097; supported is up to 4096"):
        tessera.qsa_compress_keys(np.zeros((1, 4, 4097), np.float32), np.zeros(4097, np.float32), rotary_dim=0)


# ---- qsa_append_keys ----


class Engine:
    """Rings and pages of requests whose tokens come in pieces; everything not yet written is NaN."""

    def __init__(self, dtype, requests=3, tokens=50, d=32, page_size=5, drafts=2, block=4):
        self.raw, self.weight = prompts(dtype, requests, tokens, d)
        self.rule = {"rotary_dim": 16, "block_size": block}
        self.blocks = tokens // block
        max_pages = -(-self.blocks // page_size)
        self.table = np.random.default_rng(1).permutation(requests * max_pages).astype(np.int32).reshape(requests, -1)
        self.cache = np.full((requests * max_pages, page_size, 1, d), np.nan, self.raw.dtype)
        self.ring = np.full((requests, block - 1 + drafts, d), np.nan, self.raw.dtype)
        self.lens = np.zeros(requests, np.int32)

    def append(self, counts, kind="numpy", good=None, **options):
        rows = np.concatenate([self.raw[b, n : n + k] for b, (n, k) in enumerate(zip(self.lens, counts, strict=True))])
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        arrays = rows, self.lens, self.weight, self.ring, self.cache
        assert tessera.qsa_append_keys(
            *(as_kind(kind, x) for x in arrays), cu_seqlens_q=as_kind(kind, first), page_table=as_kind(kind, self.table),
            **self.rule, **options,
        ) is None  # fmt: skip
        self.lens = self.lens + np.array(counts if good is None else good, np.int32)

    @property
    def keys(self):
        """[B, blocks, D]"""
        return self.cache[self.table, :, 0].reshape(len(self.lens), -1, self.raw.shape[2])[:, : self.blocks]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_append_has_the_bits_of_compression(dtype, kind, backend):
    e = Engine(dtype)
    e.append([7, 0, 50], kind, backend=backend)
    e.append([3, 2, 0], kind, good=[1, 2, 0], backend=backend)  # two drafts are taken back
    e.append([20, 1, 0], kind, backend=backend)
    e.append([22, 47, 0], kind, backend=backend)
    assert same_bits(e.keys, tessera.qsa_compress_keys(e.raw, e.weight, **e.rule, backend=backend))


def test_append_as_a_batch_to_a_dense_cache():
    raw, weight = prompts("bf16", requests=3, tokens=20)
    ring, cache = np.zeros((5, 3, 32), raw.dtype), np.zeros((3, 5, 32), raw.dtype)
    slots, options = np.array([4, 0, 2], np.int32), {"rotary_dim": 16}
    for begin in range(0, 20, 2):
        lens = np.full(3, begin, np.int32)
        tessera.qsa_append_keys(raw[:, begin : begin + 2], lens, weight, ring, cache, ring_slots=slots, **options)
    assert same_bits(cache, tessera.qsa_compress_keys(raw, weight, **options))
    assert not ring[[1, 3]].any()
    assert ring[slots].all()


def test_append_turns_by_positions_of_blocks():
    e = Engine("bf16", requests=1)
    positions = np.random.default_rng(2).integers(0, 99999, (1, 50), dtype=np.int32)
    for count in (6, 1, 9, 34):
        starts = positions[:, e.lens[0] // 4 * 4 :: 4]
        e.append([count], block_positions=starts)
    assert same_bits(e.keys, tessera.qsa_compress_keys(e.raw, e.weight, positions=positions, **e.rule))


def test_threads_change_no_bit():
    before = tessera.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            tessera.set_num_threads(threads)
            e = Engine("bf16", requests=30, tokens=400)
            e.append(list(range(1, 31)))
            e.append(list(range(370, 340, -1)))
            results.append((bits(e.cache), bits(e.ring), bits(tessera.qsa_compress_keys(e.raw, e.weight, **e.rule))))
        assert all(np.array_equal(x, y) for r in results[1:] for x, y in zip(r, results[0], strict=True))
    finally:
        tessera.set_num_threads(before)


APPEND_ERRORS = [
    (lambda a: {"raw_keys": a["raw_keys"][0]}, ValueError, "raw_keys has 1 axes"),
    (lambda a: {"cu_seqlens_q": None}, ValueError, r"cu_seqlens_q \[B \+ 1\] is missing"),
    (lambda a: {"seq_lens": a["seq_lens"][1:]}, ValueError, r"seq_lens .*axis 0; expected 3 \(B\)"),
    (lambda a: {"seq_lens": a["seq_lens"].astype(np.int64)}, TypeError, "seq_lens is int64; expected int32"),
    (lambda a: {"seq_lens": [0, 0, 0]}, TypeError, "seq_lens is of type list"),
    (lambda a: {"ring": a["ring"][:, :2]}, ValueError, "ring has room for 2 tokens of a request; expected at least 3"),
    (lambda a: {"ring": a["ring"][:2]}, ValueError, "ring has 2 slots for 3 requests; ring_slots is missing"),
    (lambda a: {"ring": None}, TypeError, "ring is of type NoneType"),
    (lambda a: {"cache": np.broadcast_to(a["cache"][:1], a["cache"].shape)}, ValueError, "cache is read-only"),
    (lambda a: {"cache": a["cache"][..., :16]}, ValueError, r"cache .*axis 3; expected 32 \(D of raw_keys\)"),
    (lambda a: {"cache": a["cache"].astype(np.float16)}, TypeError, "cache is float16 but raw_keys is float32"),
    (lambda a: {"page_table": None}, ValueError, r"cache has 4 axes; expected \[B, N, D\]; pages come with page_table"),
    (lambda a: {"page_table": a["page_table"][:2]}, ValueError, r"page_table .*axis 0; expected 3 \(B\)"),
    (lambda a: {"ring_slots": np.zeros(2, np.int32)}, ValueError, r"ring_slots .*axis 0; expected 3 \(B\)"),
    (lambda a: {"block_positions": np.zeros(3, np.int32)}, ValueError, r"block_positions has 1 axes; expected \[B, M\]"),
    (lambda a: {"ring": a["cache"][:3, :, 0]}, ValueError, "cache overlaps ring"),
    (lambda a: {"backend": "torch"}, ValueError, "backend is 'torch'"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("change", "exception", "message"), APPEND_ERRORS, ids=[x[2] for x in APPEND_ERRORS])
def test_append_refuses_and_writes_nothing(change, exception, message, backend):
    e = Engine("f32")
    arguments = {
        "raw_keys": e.raw[0, :30], "seq_lens": e.lens, "norm_weight": e.weight, "ring": e.ring, "cache": e.cache,
        "cu_seqlens_q": np.array([0, 10, 20, 30], np.int32), "page_table": e.table, "rotary_dim": 16, "backend": backend,
    }  # fmt: skip
    with pytest.raises(exception, match="^qsa_append_keys: " + message):
        tessera.qsa_append_keys(**{**arguments, **change(arguments)})
    assert np.isnan(e.ring).all()
    assert np.isnan(e.cache).all()


# ---- qsa_expand_blocks ----


def expanded(ids, position, block):
    """A list by the definition, without its -1s."""
    tokens = [t for i in ids if i >= 0 for t in range(i * block, i * block + block) if t <= position]
    tail = [t for t in range((position + 1) // block * block, position + 1) if t not in tokens]
    return tokens + tail


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block", [1, 3, 4, 16])
def test_expand_is_its_definition(block, backend):
    rng = np.random.default_rng(block)
    ids = np.stack([rng.permutation(24)[:9] for _ in range(60)]).astype(np.int32)
    ids[::3, ::2] = rng.choice([-1, I32.min, I32.max], ids[::3, ::2].shape)
    positions = rng.integers(0, 24 * block, 60, dtype=np.int32)
    got = tessera.qsa_expand_blocks(ids, positions, block_size=block, backend=backend)
    assert got.shape == (60, 9 * block + block - 1)
    assert got.dtype == np.int32
    for row, i, position in zip(got, ids, positions, strict=True):
        want = expanded([int(x) for x in i], int(position), block)
        assert row.tolist() == want + [-1] * (len(row) - len(want))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_expand_axes_and_kinds(kind):
    ids = np.random.default_rng(0).integers(-1, 40, (2, 3, 2, 5), dtype=np.int32)
    positions = np.random.default_rng(1).integers(0, 160, (2, 3, 2), dtype=np.int32)
    want = np.stack([tessera.qsa_expand_blocks(i, p) for i, p in zip(ids.reshape(4, 3, 5), positions.reshape(4, 3))])  # noqa: B905
    got = tessera.qsa_expand_blocks(as_kind(kind, ids), as_kind(kind, positions))
    assert type(got) is type(as_kind(kind, ids))
    assert np.array_equal(np.asarray(got), want.reshape(2, 3, 2, 23))
    one = tessera.qsa_expand_blocks(as_kind(kind, ids[0, 0, 0]), as_kind(kind, np.array(positions[0, 0, 0])))
    assert np.array_equal(np.asarray(one), np.asarray(got)[0, 0, 0])


@pytest.mark.parametrize(
    ("ids", "positions", "options", "exception", "message"),
    [
        (np.zeros((2, 3), np.int64), np.zeros(2, np.int32), {}, TypeError, "block_ids is int64; expected int32"),
        (np.zeros((2, 3), np.int32), np.zeros(2), {}, TypeError, "query_positions is float64; expected int32"),
        (np.zeros((2, 3), np.int32), np.zeros(3, np.int32), {}, ValueError, "query_positions .*axis 0; expected 2"),
        (np.zeros((2, 3), np.int32), np.zeros((2, 1), np.int32), {}, ValueError, "query_positions has 2 axes"),
        (np.zeros(3, np.int32), np.zeros(1, np.int32), {}, ValueError, "query_positions has 1 axes; expected none"),
        (np.zeros((), np.int32), np.zeros((), np.int32), {}, ValueError, "block_ids has no axes"),
        (np.zeros((2, 3), np.int32), 5, {}, TypeError, "query_positions is of type int"),
        (np.zeros((2, 3), np.int32), np.zeros(2, np.int32), {"block_size": 0}, ValueError, "block_size is 0"),
        (np.zeros((2, 3), np.int32), np.zeros(2, np.int32), {"block_size": 2**62}, ValueError, "block_size is .*too much"),
        (np.zeros((2, 3), np.int32), np.zeros(2, np.int32), {"backend": None}, ValueError, "backend is None"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_expand_refuses(ids, positions, options, exception, message):
    with pytest.raises(exception, match="^qsa_expand_blocks: " + message):
        tessera.qsa_expand_blocks(ids, positions, **options)


def test_bfloat16_of_numpy_is_ml_dtypes():
    assert tessera.qsa_compress_keys(*prompts("bf16"), rotary_dim=16).dtype == ml_dtypes.bfloat16
