// The nodes: one of the host's own, and the operators of tessera in between. This is all that a host of this kind needs.
#ifndef EXAMPLES_GGML_HOST_OPS_H_
#define EXAMPLES_GGML_HOST_OPS_H_

#include <cstdio>
#include <cstring>

#include "host.h"
#include "tessera/tessera.hpp"

namespace host {

// The same memory with the slowest axis first and strides in elements. `axes` counts from the host's fastest one.
inline tessera_tensor view(const Tensor& t, int axes) {
  tessera_tensor v = {};
  v.data = t.data;
  v.dtype = t.type == Type::kF32 ? TESSERA_F32 : t.type == Type::kF16 ? TESSERA_F16 : TESSERA_I32;
  v.ndim = axes;
  for (int i = 0; i < axes; ++i) {
    v.shape[axes - 1 - i] = t.ne[i];
    v.stride[axes - 1 - i] = static_cast<int64_t>(t.nb[i] / size_of(t.type));
  }
  return v;
}

// One operator: every thread of the host makes the call, as part `ith` of `nth`, with a piece of the work buffer for its
// own. The arguments stay as they are from step to step; lengths and tables change in the tensors they view.
template <class Args>
class OpNode : public Node {
 public:
  using Run = tessera_status (*)(const Args*, const tessera_context*);
  using Size = tessera_status (*)(const Args*, const tessera_context*, size_t*);

  OpNode(const Args& given, Run run, Size size = nullptr) : args(given), run_(run), size_(size) {}

  // All parts of a call need the same; here in whole cache lines.
  size_t work_size(int nth) override {
    if (size_ == nullptr) return 0;
    tessera_context context = {};
    context.executor = tessera::part(0, nth);
    tessera::throw_if_failed(size_(&args, &context, &piece_));
    piece_ = (piece_ + 63) / 64 * 64;
    return piece_ * static_cast<size_t>(nth);
  }

  bool compute(const Params& params) override {
    tessera_context context = {};
    context.executor = tessera::part(params.ith, params.nth);
    if (piece_ > 0) {
      context.workspace = params.work + piece_ * static_cast<size_t>(params.ith);
      context.workspace_bytes = piece_;
    }
    if (run_(&args, &context) == TESSERA_OK) return true;
    std::fprintf(stderr, "part %d: %s\n", params.ith, tessera_last_error());  // the message is this thread's
    return false;
  }

  Args args;

 private:
  Run run_;
  Size size_;
  size_t piece_ = 0;  // bytes of the work buffer for one part
};

// f32 to f16, to the nearest, ties to even; the host's business.
inline uint16_t to_f16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x47800000) return static_cast<uint16_t>(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (bits >= 0x38800000) return static_cast<uint16_t>(sign | ((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13));
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof bits);
  magnitude += 0.5f;  // a subnormal f16 is what the addition leaves in the low bits
  std::memcpy(&bits, &magnitude, sizeof bits);
  return static_cast<uint16_t>(sign | (bits - 0x3f000000));
}

struct CastNode : Node {
  CastNode(const Tensor& f32, const Tensor& f16) : from(f32), to(f16) {}
  bool compute(const Params& params) override {
    const int64_t n = to.ne[0] * to.ne[1] * to.ne[2] * to.ne[3];
    for (int64_t i = n * params.ith / params.nth; i < n * (params.ith + 1) / params.nth; ++i) {
      reinterpret_cast<uint16_t*>(to.data)[i] = to_f16(reinterpret_cast<const float*>(from.data)[i]);
    }
    return true;
  }
  Tensor from, to;  // dense
};

}  // namespace host

#endif  // EXAMPLES_GGML_HOST_OPS_H_
