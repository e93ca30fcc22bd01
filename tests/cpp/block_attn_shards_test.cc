// Cutting the keys of block-sparse attention into shards and merging what they give changes no more than rounding.
#include <gtest/gtest.h>

#include <vector>

#include "attention_bits.h"

namespace tessera::test {
namespace {

class BlockAttnShards : public BlockAttnBits {};
INSTANTIATE_TEST_SUITE_P(BlockAttn, BlockAttnShards, testing::ValuesIn(choices()),
                         [](const auto& test) { return test.param.name(); });

// The arguments of keys [first, end) of a call, with local ids: the queries stand `first` keys earlier.
struct Shard {
  Attention part;
  Args args;

  Shard(const Attention& call, int64_t first, int64_t end) : part(call) {
    const BlockAttn& c = call.shape;
    part.q_offset = TestTensor(TESSERA_I32, {c.requests});
    for (int64_t b = 0; b < c.requests; ++b) {
      part.q_offset.set(b, static_cast<double>(call.position(b, 0) - first));
    }
    const double first_id = static_cast<double>(first / c.block);
    part.ids = with_lists(call, c.list_width(), [&](std::vector<double>& list) {
      for (double& id : list) id = id < first_id ? -1 : id - first_id;  // from the end on, ids name no block
    });
    args = part.args();
    args.k = slice(call.k, 1, first, end - first);
    args.v = slice(call.v, 1, first, end - first);
  }
};

TEST_P(BlockAttnShards, MergeIntoTheWhole) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    const reference::Attention want = call.expected();
    const int64_t cut = c.blocks() / 3 * c.block;
    const Shard shards[] = {{call, 0, cut}, {call, cut, c.keys}};
    std::vector<State> states;
    std::vector<tessera_tensor> o, l, m;
    for (const Shard& shard : shards) {
      states.push_back(call.state());
      Args a = shard.args;
      a.state_o = states.back().o;
      a.state_l = states.back().l;
      a.state_m = states.back().m;
      const tessera_context ctx = context();
      ASSERT_EQ(tessera_block_sparse_gqa_prefill_state(&a, &ctx), TESSERA_OK) << tessera_last_error();
      o.push_back(a.state_o);
      l.push_back(a.state_l);
      m.push_back(a.state_m);
    }
    const TestTensor merged = call.output().out;
    const tessera_cp_merge_args merge = {o.data(), l.data(), m.data(), 2, merged};
    ASSERT_EQ(tessera_cp_merge(&merge, nullptr), TESSERA_OK) << tessera_last_error();
    EXPECT_TRUE(out_within(merged, call.dtype, want.out, want.spread, want.reach));
  }
}

TEST_P(BlockAttnShards, NormalisedPartialsMergeIntoTheWhole) {
  for (const BlockAttn& c : kCalls) {
    SCOPED_TRACE(name(c));
    const Attention call = make(c);
    reference::Attention want = call.expected();
    const int64_t cut = c.blocks() / 3 * c.block;
    const Output first = run(Shard(call, 0, cut).args, call.output(), context());
    const Output second = run(Shard(call, cut, c.keys).args, call.output(), context());
    const Output merged = call.output();
    const tessera_tensor outs[] = {first.out, second.out}, lses[] = {first.lse, second.lse};
    const tessera_merge_states_args merge = {outs, lses, 2, merged.out, merged.lse};
    ASSERT_EQ(tessera_merge_states(&merge, nullptr), TESSERA_OK) << tessera_last_error();
    for (double& x : want.spread) x *= 2;  // the partials carry a rounding of their own
    EXPECT_TRUE(out_within(merged.out, call.dtype, want.out, want.spread, want.reach));
    EXPECT_TRUE(log_within("lse", merged.lse, call.dtype, want.lse, want.reach));
  }
}

}  // namespace
}  // namespace tessera::test
