// Compressed keys and token lists: Python's arguments in the order of the signatures in tessera/_qsa_keys.py, by position.
#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

// The rule's numbers, to which the C struct points.
struct Rule {
  Rule(Call& call, nb::handle norm_weight, nb::handle block_size, nb::handle eps_given, nb::handle rotary_dim,
       nb::handle rope_theta, nb::handle round_intermediates)
      : eps(call.number("eps", eps_given)), theta(call.number("rope_theta", rope_theta)) {
    c.norm_weight = call.input("norm_weight", norm_weight, kFloats);
    c.block_size = call.positive("block_size", block_size);
    c.eps = &eps;
    c.rotary_dim = call.integer("rotary_dim", rotary_dim);
    c.rope_theta = &theta;
    c.round_intermediates = call.flag("round_intermediates", round_intermediates) ? 1 : 0;
  }
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  double eps, theta;
  tessera_qsa_key_rule c{};
};

nb::object qsa_compress_keys(nb::handle raw_keys, nb::handle norm_weight, nb::handle positions, nb::handle cos,
                             nb::handle sin, nb::handle block_size, nb::handle eps, nb::handle rotary_dim,
                             nb::handle rope_theta, nb::handle round_intermediates, nb::handle out,
                             nb::handle backend) {
  Call call("qsa_compress_keys", backend);
  tessera_qsa_compress_keys_args args{};
  args.raw_keys = call.input("raw_keys", raw_keys, kFloats);
  const Rule rule(call, norm_weight, block_size, eps, rotary_dim, rope_theta, round_intermediates);
  args.rule = rule.c;
  args.positions = call.optional_input("positions", positions, kI32);
  args.cos = call.optional_input("cos", cos, kF32);
  args.sin = call.optional_input("sin", sin, kF32);
  // Axes that the operator will refuse give a tensor that it will not see.
  const int64_t* const s = args.raw_keys.shape;
  const bool valid = args.raw_keys.ndim == 3;
  const Call::Output result = call.output(
      "out", out, kFloats, valid ? Shape{s[0], s[1] / rule.c.block_size, s[2]} : Shape{0, 0, 0}, args.raw_keys.dtype);
  args.out = result.view;
  call.run(tessera_qsa_compress_keys, args);
  return call.result(result);
}

nb::object qsa_append_keys(nb::handle raw_keys, nb::handle seq_lens, nb::handle norm_weight, nb::handle ring,
                           nb::handle cache, nb::handle cu_seqlens_q, nb::handle ring_slots, nb::handle page_table,
                           nb::handle block_positions, nb::handle cos, nb::handle sin, nb::handle block_size,
                           nb::handle eps, nb::handle rotary_dim, nb::handle rope_theta, nb::handle round_intermediates,
                           nb::handle backend) {
  Call call("qsa_append_keys", backend);
  tessera_qsa_append_keys_args args{};
  args.raw_keys = call.input("raw_keys", raw_keys, kFloats);
  args.seq_lens = call.input("seq_lens", seq_lens, kI32);
  const Rule rule(call, norm_weight, block_size, eps, rotary_dim, rope_theta, round_intermediates);
  args.rule = rule.c;
  args.ring = call.destination("ring", ring, kFloats);
  args.cache = call.destination("cache", cache, kFloats);
  args.cu_seqlens_q = call.optional_input("cu_seqlens_q", cu_seqlens_q, kI32);
  args.ring_slots = call.optional_input("ring_slots", ring_slots, kI32);
  args.page_table = call.optional_input("page_table", page_table, kI32);
  args.block_positions = call.optional_input("block_positions", block_positions, kI32);
  args.cos = call.optional_input("cos", cos, kF32);
  args.sin = call.optional_input("sin", sin, kF32);
  call.run(tessera_qsa_append_keys, args);
  return nb::none();
}

nb::object qsa_screen_keys(nb::handle keys, nb::handle out, nb::handle backend) {
  Call call("qsa_screen_keys", backend);
  tessera_qsa_screen_keys_args args{};
  args.keys = call.input("keys", keys, kFloats);
  const Shape shape = shape_of(args.keys);
  const auto given = call.outs(out, 2, "pair of codes and scales");
  const Call::Output codes = call.output("codes", given[0], kI8, shape, TESSERA_I8);
  const Call::Output scales = call.output("scales", given[1], kF32, Shape(shape.begin(), shape.end() - 1), TESSERA_F32);
  args.codes = codes.view;
  args.scales = scales.view;
  call.run(tessera_qsa_screen_keys, args);
  return nb::make_tuple(call.result(codes), call.result(scales));
}

nb::object qsa_expand_blocks(nb::handle block_ids, nb::handle query_positions, nb::handle block_size, nb::handle out,
                             nb::handle backend) {
  Call call("qsa_expand_blocks", backend);
  tessera_qsa_expand_blocks_args args{};
  args.block_ids = call.input("block_ids", block_ids, kI32);
  args.query_positions = call.part({call.op(), "query_positions"}, query_positions, kI32);
  args.block_size = call.positive("block_size", block_size);
  Shape shape = shape_of(args.block_ids);
  int64_t& width = shape.back();
  if (__builtin_mul_overflow(width, args.block_size, &width) ||
      __builtin_add_overflow(width, args.block_size - 1, &width)) {
    width = 0;  // which the operator refuses
  }
  const Call::Output tokens = call.out("token_indices", out, kI32, shape, TESSERA_I32);
  args.token_indices = tokens.view;
  call.run(tessera_qsa_expand_blocks, args);
  return call.result(tokens);
}

}  // namespace

void bind_qsa_keys(nb::module_& m) {
  bind(m, "qsa_compress_keys", qsa_compress_keys);
  bind(m, "qsa_append_keys", qsa_append_keys);
  bind(m, "qsa_screen_keys", qsa_screen_keys);
  bind(m, "qsa_expand_blocks", qsa_expand_blocks);
}

}  // namespace tessera::python
