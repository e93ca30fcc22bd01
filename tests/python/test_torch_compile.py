"""Compiled code that calls `tessera` functions: one graph, the bits of the eager call."""

import pytest
import tessera
import torch
from op_calls import CALLS, call_of
from tessera._operators import OPERATORS

LSE = {"return_lse", "return_softmax_lse"}


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


def recorder(graphs: list):
    """A backend that keeps the graphs and runs them through AOTAutograd."""

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    return backend


def ops_in(graph) -> list[str]:
    return [node.target.__name__ for node in graph.graph.nodes if "tessera" in str(node.target)]


def tensors_of(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value or () for t in tensors_of(part)] if isinstance(value, (list, tuple)) else []


def assert_same(actual, expected) -> None:
    for a, b in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_becomes_one_op(name, dynamic):
    graphs: list = []
    function = getattr(tessera, name)
    compiled = torch.compile(
        lambda args, options: function(*args, **options), fullgraph=True, dynamic=dynamic, backend=recorder(graphs)
    )
    args, options = call_of(name, 3)
    expected_args, _ = call_of(name, 3)
    expected = function(*expected_args, **options)
    assert_same(compiled(args, options), expected)
    assert_same(args, expected_args)  # among them caches that were changed
    assert ops_in(graphs[-1]) == [name]  # before it, graphs in which Dynamo found a number that has to be a constant


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if row.results and row.has_out])
def test_a_call_with_out_becomes_one_op(name):
    graphs: list = []
    function = getattr(tessera, name)
    args, options = call_of(name, 3)
    expected = function(*args, **options)
    out = tuple(torch.zeros_like(t) for t in tensors_of(expected) or [expected])
    out = out if isinstance(expected, tuple) else out[0]
    compiled = torch.compile(
        lambda args, options, out: function(*args, **options, out=out), fullgraph=True, backend=recorder(graphs)
    )
    assert_same(compiled(args, options, out), expected)
    assert_same(out, expected)
    assert ops_in(graphs[-1]) == [name + "_out"]


@pytest.mark.parametrize("given", ["lse", "out", "out and lse"])
def test_out_and_lse_in_any_combination(given):
    args, options = call_of("msa_sparse_attention", 3)
    expected = tessera.msa_sparse_attention(*args, **options, return_softmax_lse=True)
    for returns_lse in (False, True):
        targets = {name: torch.zeros_like(t) for name, t in zip(("out", "lse"), expected, strict=True) if name in given}
        options["return_softmax_lse"] = returns_lse
        compiled = torch.compile(
            lambda targets: tessera.msa_sparse_attention(*args, **options, **targets),
            fullgraph=True,
            backend="aot_eager",
        )
        assert_same(compiled(targets), expected if returns_lse else expected[0])
        for name, target in targets.items():
            assert_same(target, expected[("out", "lse").index(name)])


def attend_with_growing_cache(q, k, v, slots, k_cache, v_cache, index_q, index_k, page_table, used):
    """One decode step of a layer as a user would compile it: write, select, attend."""
    tessera.append_kv(k, v, slots, k_cache, v_cache)
    sequences = {"page_table": page_table, "seqused_k": used, "block_size": 4}
    rows = torch.arange(len(q) + 1, dtype=torch.int32)
    ids = tessera.msa_select(index_q * 2, index_k, topk=2, cu_seqlens_q=rows, **sequences)
    out, lse = tessera.msa_sparse_decode_attention(q, k_cache, v_cache, ids, return_softmax_lse=True, **sequences)
    return torch.nn.functional.silu(out.flatten(1)), lse


def decode_step(requests: int, seed: int = 0):
    torch.manual_seed(seed)
    pages = 4 * requests
    caches = [torch.randn(pages, 2, 4, 16) for _ in range(3)]
    new = [torch.randn(requests, heads, 16) for heads in (4, 2, 2)]
    index_q = torch.randn(requests, 2, 16)
    page_table = torch.arange(pages, dtype=torch.int32).reshape(requests, 4)
    used = torch.full((requests,), 13, dtype=torch.int32)
    slots = page_table[:, 3] * 4
    return [*new, slots, caches[0], caches[1], index_q, caches[2], page_table, used]


def test_inductor_runs_decode_steps_of_any_number_of_requests():
    compiled = torch.compile(attend_with_growing_cache, fullgraph=True, dynamic=True)
    for requests in (3, 5):
        inputs, same = decode_step(requests), decode_step(requests)
        with torch._dynamo.config.patch(error_on_recompile=requests != 3):
            actual = compiled(*inputs)
        torch.testing.assert_close(actual, attend_with_growing_cache(*same))  # silu is inductor's
        assert_same(inputs, same)


def test_inductor_keeps_unit_strides():
    """Attention wants features side by side; code around it may be laid out as the compiler likes."""

    def attend(q, k, v, ids):
        q, k, v = (torch.sin(x).transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        return torch.cos(tessera.block_sparse_gqa_prefill(q, k, v, ids, block_size=4))

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 12, 2, 16) for _ in range(3))
    ids = torch.zeros(2, 3, 1, dtype=torch.int32)
    torch.testing.assert_close(torch.compile(attend, fullgraph=True)(q, k, v, ids), attend(q, k, v, ids))


def test_a_changed_number_of_rows_does_not_recompile():
    graphs: list = []
    compiled = torch.compile(
        lambda q, k: tessera.msa_select(q, k, topk=2, block_size=4, q_offset=3),
        fullgraph=True,
        dynamic=True,
        backend=recorder(graphs),
    )
    for batch, rows, keys in ((3, 5, 30), (4, 9, 41), (6, 17, 19)):  # all different: equal sizes are one to Dynamo
        q, k = torch.randn(batch, rows, 2, 8), torch.randn(batch, keys, 1, 8)
        assert_same(compiled(q, k), tessera.msa_select(q, k, topk=2, block_size=4, q_offset=3))
    assert len(graphs) == 1


def test_an_export_runs_the_ops():
    class Select(torch.nn.Module):
        def forward(self, q, k):
            return torch.ops.tessera.msa_select(q, k, topk=2, block_size=4)

    q, k = torch.randn(2, 5, 2, 8), torch.randn(2, 30, 1, 8)
    exported = torch.export.export(Select(), (q, k), dynamic_shapes=({1: torch.export.Dim("rows")}, None))
    q = torch.randn(2, 9, 2, 8)
    assert_same(exported.module()(q, k), Select()(q, k))


def test_a_gradient_is_refused_while_compiling():
    q, k = torch.randn(3, 5, 2, 8), torch.randn(3, 30, 1, 8, requires_grad=True)
    compiled = torch.compile(lambda q, k: tessera.msa_select(q, k * 2, topk=2), fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="NotImplementedError.*msa_select: k requires a gradient"):
        compiled(q, k)
    with torch.no_grad():
        assert_same(compiled(q, k), tessera.msa_select(q, k * 2, topk=2))
