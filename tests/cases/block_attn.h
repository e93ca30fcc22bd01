// Shapes of block-sparse attention calls, as data. The numbers sit around what a kernel may round to: vectors of 4 to
// 16 floats, tiles of 48 to 192 rows, key tiles of 128, chunks of 2048 keys, masks of 64 lists.
#ifndef TESSERA_CASES_BLOCK_ATTN_H_
#define TESSERA_CASES_BLOCK_ATTN_H_

#include <cstdint>
#include <string>

namespace tessera::cases {

enum class Ids {
  kMixed,    // valid, repeated and invalid ids in any order
  kPacked,   // ascending distinct ids, then -1; lists of any length from none
  kAll,      // every block, in a random order
  kInvalid,  // no valid id at all
};

enum class Offset {
  kDefault,     // absent: the last query sees the last key
  kPerRequest,  // before the keys, among them, beyond them, and so far before them that all rows are empty
};

enum class Layout {
  kDense,
  kStrided,    // token and head axes swapped in memory, odd pitches, ids and lse without a unit stride
  kBroadcast,  // stride 0: k and v over the KV heads, q over the requests, ids over the requests
};

inline constexpr float kDefaultScale = -1e30f;

struct BlockAttn {
  int64_t requests = 1;
  int64_t queries = 33;
  int64_t keys = 129;
  int64_t kv_heads = 1;
  int64_t group = 2;
  int64_t dim = 16;
  int64_t dim_v = 16;
  int64_t block = 16;
  int64_t block_q = 16;
  int64_t width = 4;  // ignored by kAll
  bool per_head = false;
  bool causal = true;
  Ids ids = Ids::kMixed;
  Offset offset = Offset::kDefault;
  Layout layout = Layout::kDense;
  float scale = kDefaultScale;

  int64_t heads() const { return kv_heads * group; }
  int64_t blocks() const { return (keys + block - 1) / block; }
  int64_t lists() const { return (queries + block_q - 1) / block_q; }
  int64_t list_width() const { return ids == Ids::kAll ? blocks() : width; }
};

// A name of letters, digits and underscores that says the whole shape.
inline std::string name(const BlockAttn& c) {
  std::string s;
  const auto add = [&s](const char* key, int64_t value) {
    s += (s.empty() ? "" : "_") + std::string(key) + std::to_string(value);
  };
  add("b", c.requests);
  add("q", c.queries);
  add("k", c.keys);
  add("h", c.kv_heads);
  add("g", c.group);
  add("d", c.dim);
  if (c.dim_v != c.dim) add("dv", c.dim_v);
  add("bs", c.block);
  add("bq", c.block_q);
  add("w", c.list_width());
  if (c.per_head) s += "_perhead";
  if (!c.causal) s += "_full";
  if (c.ids == Ids::kPacked) s += "_packed";
  if (c.ids == Ids::kAll) s += "_all";
  if (c.ids == Ids::kInvalid) s += "_invalid";
  if (c.offset == Offset::kPerRequest) s += "_offset";
  if (c.layout == Layout::kStrided) s += "_strided";
  if (c.layout == Layout::kBroadcast) s += "_broadcast";
  if (c.scale != kDefaultScale) s += "_scaled";
  return s;
}

// Small calls that together touch every path: run on every variant.
inline constexpr BlockAttn kSmoke[] = {
    {.queries = 1, .keys = 1, .group = 1, .dim = 8, .dim_v = 8, .block = 1, .block_q = 1, .width = 1, .ids = Ids::kAll},
    {.layout = Layout::kStrided},
    {.requests = 3, .kv_heads = 2, .group = 3, .per_head = true, .offset = Offset::kPerRequest},
    {.requests = 2, .kv_heads = 2, .per_head = true, .layout = Layout::kBroadcast},
    {.queries = 65, .keys = 129, .group = 5, .dim = 72, .dim_v = 24, .block = 100, .block_q = 7, .width = 2},
    {.queries = 130,
     .keys = 257,
     .group = 1,
     .dim = 24,
     .dim_v = 40,
     .block = 3,
     .block_q = 1,
     .width = 9,
     .ids = Ids::kPacked},
    {.queries = 129,
     .keys = 128,
     .group = 8,
     .dim = 64,
     .dim_v = 64,
     .block = 128,
     .block_q = 128,
     .width = 1,
     .ids = Ids::kAll},
    {.queries = 40, .keys = 513, .group = 16, .dim = 128, .dim_v = 128, .block = 128, .block_q = 64, .width = 3},
    {.queries = 3, .keys = 300, .group = 64, .dim = 8, .dim_v = 8, .block = 129, .block_q = 2, .width = 3},
    {.queries = 20, .keys = 20, .ids = Ids::kInvalid},
    {.queries = 20, .keys = 50, .block = 7, .block_q = 5, .width = 0},
    {.queries = 50, .keys = 20, .block = 7, .block_q = 50, .width = 3},
    {.queries = 64, .keys = 200, .causal = false, .layout = Layout::kStrided},
    {.queries = 1, .keys = 4300, .group = 4, .block = 100, .block_q = 1, .ids = Ids::kAll},
    {.queries = 5, .keys = 4300, .group = 4, .block = 64, .block_q = 2, .width = 66, .ids = Ids::kPacked},
    {.queries = 17, .keys = 300, .dim = 512, .dim_v = 8, .block = 200, .block_q = 200, .width = 2},
    {.queries = 17, .keys = 40, .dim = 8, .dim_v = 512, .block = 256, .block_q = 3, .width = 1, .ids = Ids::kAll},
    {.requests = 0},
    {.queries = 0},
    {.keys = 0},
};

// One axis at a time through its awkward values.
struct Lengths {
  int64_t queries, keys;
};
inline constexpr Lengths kLengths[] = {{1, 2},     {2, 1},     {1, 127},   {1, 128},   {1, 129},  {127, 127},
                                       {127, 128}, {128, 127}, {128, 128}, {128, 129}, {129, 65}, {129, 129},
                                       {48, 1},    {49, 191},  {193, 192}, {507, 507}, {0, 5},    {5, 0}};
struct Dims {
  int64_t dim, dim_v;
};
inline constexpr Dims kDims[] = {{8, 8},    {16, 8},    {8, 24},   {24, 24},   {64, 64},   {72, 72},
                                 {80, 80},  {96, 96},   {128, 64}, {128, 128}, {136, 136}, {64, 256},
                                 {256, 40}, {256, 256}, {512, 48}, {48, 512},  {512, 512}};
inline constexpr int64_t kBlocks[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 127, 128, 129, 200, 256, 257, 300};
inline constexpr int64_t kGroups[] = {1, 2, 3, 5, 7, 8, 12, 16, 64, 71};
inline constexpr int64_t kBlockQs[] = {1, 2, 7, 63, 64, 65, 128, 200};
inline constexpr int64_t kWidths[] = {0, 1, 2, 3, 8, 33};

}  // namespace tessera::cases

#endif  // TESSERA_CASES_BLOCK_ATTN_H_
