// What the forms of a block attention call have in common, and its checks.
#ifndef TESSERA_OPS_BLOCK_ATTN_INPUTS_H_
#define TESSERA_OPS_BLOCK_ATTN_INPUTS_H_

#include <initializer_list>

#include "core/check.h"
#include "ops/block_attn/problem.h"

namespace tessera::block_attn {

inline constexpr std::initializer_list<tessera_dtype> kFloats = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

// A tensor, what messages call it and how they write its axes.
struct Named {
  const char* name;
  const tessera_tensor& tensor;
  const char* axes;
};

// What the forms have in common: the axes of q are [rows..., heads, D].
struct Call {
  Named q;
  const tessera_tensor& k;
  const tessera_tensor& v;
  Named ids;
  bool packed_q;
  int64_t block;
  tessera_mask mask;
  const float* softmax_scale;
  const tessera_sequences& sequences;
};

// Everything but the axes of the lists and the outputs.
Sequences check_inputs(const Call& call, KeyForm form, Checker* c);
// One output: q's first axes (and Dv), no overlap with itself or an input.
void check_output(const char* name, const tessera_tensor& t, bool features, tessera_dtype dtype, const Call& call,
                  Checker* c);
void check_out(const tessera_tensor& out, const tessera_tensor& lse, const Call& call, Checker* c);

// The problem but for its outputs and block_q.
void fill_inputs(const Call& call, KeyForm form, const Sequences& sequences, Problem* p);
void fill_out(const tessera_tensor& out, const tessera_tensor& lse, bool packed, Problem* p);
Strides strides(const tessera_tensor& t, bool packed);

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_INPUTS_H_
