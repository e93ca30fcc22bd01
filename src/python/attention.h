// What the bindings of the attention operators share: q is [rows..., D] and v [..., Dv], or with five axes [..., Dv, e], so
// out is [rows..., Dv] and lse [rows...]. Sizes that the operator will refuse give outputs of sizes that it will not see.
#ifndef TESSERA_PYTHON_ATTENTION_H_
#define TESSERA_PYTHON_ATTENTION_H_

#include <algorithm>

#include "python/call.h"

namespace tessera::python {

inline Shape row_shape(const tessera_tensor& q) {
  Shape shape = shape_of(q);
  shape.pop_back();
  return shape;
}

inline Shape out_shape(const tessera_tensor& q, const tessera_tensor& v) {
  Shape shape = shape_of(q);
  shape.back() = v.shape[std::min(v.ndim, 4) - 1];
  return shape;
}

template <class Args>
Args attention_inputs(Call& call, nb::handle q, nb::handle k, nb::handle v, nb::handle block_size, nb::handle causal,
                      nb::handle softmax_scale) {
  Args args{};
  args.q = call.input("q", q, kFloats);
  args.k = call.input("k", k, kFloats);
  args.v = call.input("v", v, kFloats);
  args.block_size = call.positive("block_size", block_size);
  args.mask = call.flag("causal", causal) ? TESSERA_MASK_CAUSAL : TESSERA_MASK_NONE;
  args.softmax_scale = call.optional_float("softmax_scale", softmax_scale);
  return args;
}

// Runs one of `functions` into out and, if given or returned, lse.
template <class Args>
nb::object attend(Call& call, const Functions<Args>& functions, Args& args, bool returns_lse, nb::handle out,
                  nb::handle lse) {
  const Call::Output o = call.output("out", out, kFloats, out_shape(args.q, args.v), args.q.dtype);
  args.out = o.view;
  if (!returns_lse && lse.is_none()) {
    call.run(functions, args);
    return call.result(o);
  }
  const Call::Output l = call.output("lse", lse, kF32, row_shape(args.q), TESSERA_F32);
  args.lse = l.view;
  call.run(functions, args);
  if (!returns_lse) return call.result(o);
  return nb::make_tuple(call.result(o), call.result(l));
}

template <class Args>
nb::object explain(Call& call, tessera_status (*function)(const Args*, const tessera_context*, char*, size_t),
                   Args& args, nb::handle out, nb::handle lse) {
  args.out = call.output("out", out, kFloats, out_shape(args.q, args.v), args.q.dtype).view;
  if (!lse.is_none()) args.lse = call.output("lse", lse, kF32, row_shape(args.q), TESSERA_F32).view;
  return call.explain(function, args);
}

}  // namespace tessera::python

#endif  // TESSERA_PYTHON_ATTENTION_H_
