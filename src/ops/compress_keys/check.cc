#include "ops/compress_keys/check.h"

#include <cmath>
#include <limits>

namespace tessera::compress_keys {
namespace {

constexpr int64_t kDefaultBlock = 4;
constexpr double kDefaultEps = 1e-6;
constexpr double kDefaultTheta = 1e7;

void check_rotary_dim(int64_t rotary_dim, int64_t dim, Checker* c) {
  c->require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= dim, [&] {
    return invalid("rotary_dim is " + std::to_string(rotary_dim) + "; expected an even number from 0 to D, " +
                   std::to_string(dim));
  });
}

void check_cosines(const char* name, const tessera_tensor& t, const Turns& turns, int64_t half, Checker* c) {
  c->tensor(name, t, turns.axes, {3}, {TESSERA_F32});
  c->axis(name, t, 0, turns.requests, "B of raw_keys");
  if (turns.blocks >= 0) c->axis(name, t, 1, turns.blocks, "S / block_size");
  c->axis(name, t, 2, half, "rotary_dim / 2");
  c->unit_feature(name, t);
}

}  // namespace

Rule check_rule(const tessera_qsa_key_rule& r, const tessera_tensor& raw_keys, Checker* c) {
  Rule rule = {};
  rule.dtype = raw_keys.dtype;
  rule.dim = raw_keys.shape[raw_keys.ndim - 1];
  rule.block = r.block_size == 0 ? kDefaultBlock : r.block_size;
  const double eps = r.eps == nullptr ? kDefaultEps : *r.eps;
  rule.eps = static_cast<float>(eps);
  rule.theta = r.rope_theta == nullptr ? kDefaultTheta : *r.rope_theta;
  rule.half = r.rotary_dim / 2;
  rule.norm_weight = r.norm_weight;
  rule.round = r.round_intermediates != 0;

  c->require(rule.dim > 0, [] { return invalid("raw_keys need at least one feature"); });
  c->require(rule.dim <= kMaxDim, [&] {
    return not_implemented("raw_keys have D " + std::to_string(rule.dim) + "; supported is up to " +
                           std::to_string(kMaxDim));
  });
  c->tensor("norm_weight", r.norm_weight, "[D]", {1}, kKeyTypes);
  if (c->ok() && r.norm_weight.dtype != TESSERA_F32) c->same_dtype("norm_weight", r.norm_weight, "raw_keys", raw_keys);
  c->axis("norm_weight", r.norm_weight, 0, rule.dim, "D of raw_keys");
  c->require(rule.block >= 1,
             [&] { return invalid("block_size is " + std::to_string(rule.block) + "; expected at least 1"); });
  c->require(std::isfinite(eps) && eps >= 0,
             [&] { return invalid("eps is " + std::to_string(eps) + "; expected a number of at least 0"); });
  check_rotary_dim(r.rotary_dim, rule.dim, c);
  c->require(std::isfinite(rule.theta) && rule.theta > 0,
             [&] { return invalid("rope_theta is " + std::to_string(rule.theta) + "; expected a number above 0"); });
  return rule;
}

Rotation check_rotation(const Turns& turns, const Rule& rule, Checker* c) {
  Rotation rotation = {};
  rotation.blocks = std::numeric_limits<int64_t>::max();
  if (given(turns.cos) || given(turns.sin)) {
    c->require(!given(turns.positions),
               [&] { return invalid(std::string(turns.positions_name) + " and cos with sin exclude each other"); });
    check_cosines("cos", turns.cos, turns, rule.half, c);
    check_cosines("sin", turns.sin, turns, rule.half, c);
    c->axis("sin", turns.sin, 1, turns.cos.shape[1], "blocks of cos");
    if (rule.half == 0) return rotation;
    rotation.cos = static_cast<const float*>(turns.cos.data);
    rotation.sin = static_cast<const float*>(turns.sin.data);
    rotation.cos_request = turns.cos.stride[0];
    rotation.cos_block = turns.cos.stride[1];
    rotation.sin_request = turns.sin.stride[0];
    rotation.sin_block = turns.sin.stride[1];
    rotation.blocks = turns.cos.shape[1];
  } else if (given(turns.positions)) {
    c->axis(turns.positions_name, turns.positions, 0, turns.requests, "B of raw_keys");
    rotation.positions = static_cast<const int32_t*>(turns.positions.data);
    rotation.position_request = turns.positions.stride[0];
    rotation.position_block = turns.positions.stride[1];
    rotation.blocks = turns.positions.shape[1];
  }
  return rotation;
}

Rows rows_of(const tessera_tensor& t) {
  const int64_t item = dtype_size(t.dtype);
  return {static_cast<char*>(t.data), t.stride[0] * item, t.stride[1] * item};
}

Status check(const tessera_qsa_compress_keys_args& a, Problem* p) {
  Checker c;
  c.tensor("raw_keys", a.raw_keys, "[B, S, D]", {3}, kKeyTypes);
  c.unit_feature("raw_keys", a.raw_keys);
  if (!c.ok()) return c.take();
  p->rule = check_rule(a.rule, a.raw_keys, &c);
  if (!c.ok()) return c.take();
  const int64_t tokens = a.raw_keys.shape[1];
  p->requests = a.raw_keys.shape[0];
  p->blocks = tokens / p->rule.block;
  if (given(a.positions)) {
    c.tensor("positions", a.positions, "[B, S]", {2}, {TESSERA_I32});
    c.axis("positions", a.positions, 1, tokens, "S of raw_keys");
  }
  const Turns turns = {"positions", a.positions, a.cos, a.sin, "[B, S / block_size, rotary_dim / 2]",
                       p->requests, p->blocks};
  p->rotation = check_rotation(turns, p->rule, &c);
  if (p->blocks > 0) p->rotation.position_block *= p->rule.block;  // of a block its first token's
  c.tensor("out", a.out, "[B, S / block_size, D]", {3}, kKeyTypes);
  c.same_dtype("out", a.out, "raw_keys", a.raw_keys);
  c.axis("out", a.out, 0, p->requests, "B of raw_keys");
  c.axis("out", a.out, 1, p->blocks, "S / block_size");
  c.axis("out", a.out, 2, p->rule.dim, "D of raw_keys");
  c.unit_feature("out", a.out);
  c.output("out", a.out);
  c.disjoint("out", a.out, "raw_keys", a.raw_keys);
  c.disjoint("out", a.out, "norm_weight", a.rule.norm_weight);
  c.disjoint("out", a.out, "positions", a.positions);
  c.disjoint("out", a.out, "cos", a.cos);
  c.disjoint("out", a.out, "sin", a.sin);
  p->raw = rows_of(a.raw_keys);
  p->out = rows_of(a.out);
  return c.take();
}

}  // namespace tessera::compress_keys
