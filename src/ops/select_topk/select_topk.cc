#include "ops/select_topk/select_topk.h"

#include <algorithm>
#include <functional>

#include "core/number.h"
#include "ops/layout.h"

namespace tessera::select_topk {
namespace {

// Orders like the preference among scores: 0 is NaN, 1 the lowest number, -0 is +0.
uint32_t preference(float score) {
  if (score != score) return 0;
  const uint32_t bits = float_bits(score == 0.0f ? 0.0f : score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The ids of one list as they come.
class Writer {
 public:
  Writer(int32_t* ids, int64_t stride, int64_t topk) : to_(ids), stride_(stride), left_(topk) {}

  void add(int64_t id) {
    *to_ = static_cast<int32_t>(id);
    to_ += stride_;
    --left_;
  }
  void add_range(int64_t begin, int64_t end) {
    for (int64_t id = begin; id < end; ++id) add(id);
  }
  void finish() {
    while (left_ > 0) add(-1);
  }

 private:
  int32_t* to_;
  int64_t stride_;
  int64_t left_;
};

void add_winners(const float* scores, const Ranges& r, uint32_t* scratch, Writer* writer) {
  const int64_t count = r.end - r.begin;
  for (int64_t i = 0; i < count; ++i) scratch[i] = preference(scores[r.begin + i]);
  std::nth_element(scratch, scratch + r.winners - 1, scratch + count, std::greater<>());
  const uint32_t cut = scratch[r.winners - 1];
  // nth_element has left the others that are at least as good in front of it.
  int64_t ties = std::count(scratch, scratch + r.winners, cut);
  for (int64_t id = r.begin; id < r.end; ++id) {
    const uint32_t value = preference(scores[id]);
    if (value > cut) writer->add(id);
    if (value == cut && ties-- > 0) writer->add(id);
  }
}

}  // namespace

Ranges ranges(const Rule& rule, int64_t first, int64_t last, int64_t keys) {
  if (last < 0) return {};
  const int64_t own = last / rule.block;
  Ranges r = {};
  r.visible = std::min(own + 1, ceil_div(keys, rule.block));
  if (r.visible <= rule.topk) return {0, 0, 0, r.visible, 0};
  r.init = rule.init_blocks;
  const int64_t local = std::clamp(own - rule.local_blocks + 1, r.init, r.visible);
  // Positions of a list are consecutive, so the blocks of its queries are those from the first one's to the last one's.
  const int64_t others =
      rule.local_blocks == 0 ? local : std::clamp(std::max<int64_t>(first, 0) / rule.block, r.init, local);
  const int64_t left = rule.topk - r.init - (r.visible - local);
  if (local - others > left) {  // not even the own blocks all fit: they compete with each other
    r.begin = others;
    r.end = local;
    r.winners = left;
  } else {
    r.begin = r.init;
    r.end = others;
    r.winners = left - (local - others);
  }
  return r;
}

void write_ids(const Rule& rule, const Ranges& r, const float* scores, uint32_t* scratch, int32_t* ids,
               int64_t stride) {
  Writer writer(ids, stride, rule.topk);
  writer.add_range(0, r.init);
  if (r.needs_scores()) {
    add_winners(scores, r, scratch, &writer);
  } else if (r.winners > 0) {
    writer.add_range(r.begin, r.end);
  }
  writer.add_range(r.end, r.visible);
  writer.finish();
}

void resolve(Sequence* table, Problem* p) {
  resolve(p->sequences, table);
  p->table = table;
  p->keys = 0;
  for (int64_t b = 0; b < p->requests; ++b) p->keys = std::max(p->keys, table[b].keys);
  p->blocks = ceil_div(p->keys, p->rule.block);
}

Ranges ranges(const Problem& p, int64_t b, int64_t list) {
  const int64_t first = position(p, b, list_begin(p, list));
  return ranges(p.rule, first, position(p, b, list_end(p, list) - 1), p.table[b].keys);
}

bool any_needs_scores(const Problem& p, int64_t b, int64_t first, int64_t end) {
  for (int64_t list = first; list < end; ++list) {
    if (ranges(p, b, list).needs_scores()) return true;
  }
  return false;
}

int64_t scored_blocks(const Problem& p, int64_t b) {
  const int64_t visible = ranges(p, b, p.lists - 1).visible;
  return visible > p.rule.topk ? visible : 0;
}

void write_ids(const Problem& p, int64_t b, int64_t head, int64_t list, const float* scores, uint32_t* scratch) {
  int32_t* const ids = p.ids + b * p.ids_request + head * p.ids_head + list * p.ids_list;
  write_ids(p.rule, ranges(p, b, list), scores, scratch, ids, p.ids_entry);
}

}  // namespace tessera::select_topk
