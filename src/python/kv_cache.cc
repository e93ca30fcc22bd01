// Writing the KV cache: Python's arguments in the order of the signatures in tessera/_kv_cache.py, by position.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

nb::object append_kv(nb::handle k, nb::handle v, nb::handle slots, nb::handle k_cache, nb::handle v_cache,
                     nb::handle backend) {
  Call call("append_kv", backend);
  tessera_append_kv_args args{};
  args.k = call.input("k", k, kFloats);
  args.v = call.optional_input("v", v, kFloats);
  args.slots = call.input("slots", slots, kI32);
  args.k_cache = call.destination("k_cache", k_cache, kFloats);
  if (!v_cache.is_none()) args.v_cache = call.destination("v_cache", v_cache, kFloats);
  call.run(tessera_append_kv, args);
  return nb::none();
}

void check_batch(const Call& call, const tessera_tensor& k, const tessera_tensor& v) {
  if (k.ndim != 4) {
    refuse(PyExc_ValueError, {call.op(), "k"}, "has " + std::to_string(k.ndim) + " axes; expected [B, Sk, Hkv, D]");
  }
  if (v.ndim != 4) {
    refuse(PyExc_ValueError, {call.op(), "v"}, "has " + std::to_string(v.ndim) + " axes; expected [B, Sk, Hkv, Dv]");
  }
  for (int axis = 0; axis < 3; ++axis) {
    if (k.shape[axis] == v.shape[axis]) continue;
    refuse(PyExc_ValueError, {call.op(), "v"},
           "has size " + std::to_string(v.shape[axis]) + " in axis " + std::to_string(axis) + "; expected " +
               std::to_string(k.shape[axis]) + " as k");
  }
}

// Entries [i * count, (i + 1) * count) of axis 0.
tessera_tensor part_of(const tessera_tensor& t, int64_t i, int64_t count) {
  tessera_tensor part = t;
  part.data = static_cast<char*>(t.data) + i * count * t.stride[0] * (t.dtype == TESSERA_F32 ? 4 : 2);
  part.shape[0] = std::min(count, t.shape[0]);
  return part;
}

// A batch of one, or of none, as its rows.
tessera_tensor rows_of(const tessera_tensor& t) {
  tessera_tensor rows = t;
  rows.ndim = 3;
  std::copy(t.shape + 1, t.shape + 4, rows.shape);
  std::copy(t.stride + 1, t.stride + 4, rows.stride);
  rows.shape[0] *= t.shape[0];
  return rows;
}

// A new dense tensor of zeros.
Call::Output new_zeros(const Call& call, const Shape& shape, tessera_dtype dtype) {
  Call::Output output = call.new_output(shape, dtype_name(dtype));
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  if (elements != 0) std::memset(output.view.data, 0, static_cast<size_t>(elements * (dtype == TESSERA_F32 ? 4 : 2)));
  return output;
}

nb::object pack_kv_blocks(nb::handle k_given, nb::handle v_given, nb::handle page_size_given, nb::handle backend) {
  Call call("pack_kv_blocks", backend);
  const tessera_tensor k = call.input("k", k_given, kFloats);
  const tessera_tensor v = call.input("v", v_given, kFloats);
  const int64_t page_size = call.positive("page_size", page_size_given);
  check_batch(call, k, v);

  const int64_t batch = k.shape[0], tokens = k.shape[1], heads = k.shape[2];
  const int64_t pages = tokens / page_size + (tokens % page_size != 0 ? 1 : 0);
  const int64_t e = k.dtype == TESSERA_F32 ? 1 : 2;
  const auto units = [&](int64_t n) { return n / e + (n % e != 0 ? 1 : 0); };
  const Call::Output k_cache = new_zeros(call, {batch * pages, heads, units(k.shape[3]), page_size, e}, k.dtype);
  const Call::Output v_cache = new_zeros(call, {batch * pages, heads, units(page_size), v.shape[3], e}, v.dtype);
  const Call::Output page_table = call.new_output({batch, pages}, "int32");
  auto* const table = static_cast<int32_t*>(page_table.view.data);
  std::iota(table, table + batch * pages, 0);

  // The slots of a request, counted from its own first page.
  std::vector<int32_t> slots(static_cast<size_t>(batch == 0 ? 0 : tokens));
  std::iota(slots.begin(), slots.end(), 0);
  const tessera_tensor slots_view = {slots.data(), TESSERA_I32, 1, {static_cast<int64_t>(slots.size())}, {1}};
  for (int64_t b = 0; b < std::max<int64_t>(batch, 1); ++b) {  // without requests, for the checks
    const tessera_append_kv_args args = {rows_of(part_of(k, b, 1)), rows_of(part_of(v, b, 1)), slots_view,
                                         part_of(k_cache.view, b, pages), part_of(v_cache.view, b, pages)};
    call.run(tessera_append_kv, args);
  }
  return nb::make_tuple(call.result(k_cache), call.result(v_cache), call.result(page_table));
}

}  // namespace

void bind_kv_cache(nb::module_& m) {
  bind(m, "append_kv", append_kv);
  bind(m, "pack_kv_blocks", pack_kv_blocks);
}

}  // namespace tessera::python
