// Decode steps of a MiniMax-M3 layer in a host in the manner of ggml: persistent threads that each do part ith of nth of
// every node, a paged f16 cache, one work buffer from the host's arena. Each step has the bits of the library's own threads
// and takes nothing from the heap.
#include <cstdio>
#include <cstring>

#include "allocations.h"
#include "host.h"
#include "ops.h"

namespace {

using host::Tensor;
using host::Type;

constexpr int64_t kRequests = 2, kHeads = 64, kKvHeads = 4, kDim = 128, kBlock = 128, kPage = 64, kTopk = 16;
constexpr int64_t kMaxPages = 48, kPages = kRequests * kMaxPages;
constexpr int kThreads = 3, kSteps = 20;
constexpr int32_t kFirstLengths[kRequests] = {2900, 60};  // over 22 blocks, of which 16 are read, and all of one

void fill(const Tensor& t, uint32_t seed) {
  auto* const x = reinterpret_cast<float*>(t.data);
  for (int64_t i = 0; i < t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
  }
}

int32_t* ints(const Tensor& t) { return reinterpret_cast<int32_t*>(t.data); }

// The tensors of a layer. Names of sizes run from the fastest axis to the slowest, as in ggml.
struct Layer {
  explicit Layer(host::Arena& a)
      : q(a.tensor(Type::kF32, kDim, kHeads, kRequests)),
        k(a.tensor(Type::kF32, kDim, kKvHeads, kRequests)),
        v(a.tensor(Type::kF32, kDim, kKvHeads, kRequests)),
        k16(a.tensor(Type::kF16, kDim, kKvHeads, kRequests)),
        v16(a.tensor(Type::kF16, kDim, kKvHeads, kRequests)),
        index_q(a.tensor(Type::kF32, kDim, kKvHeads, kRequests)),
        index_k(a.tensor(Type::kF32, kDim, 1, kRequests)),
        k_cache(a.tensor(Type::kF16, kDim, kPage, kKvHeads, kPages)),
        v_cache(a.tensor(Type::kF16, kDim, kPage, kKvHeads, kPages)),
        index_cache(a.tensor(Type::kF32, kDim, kPage, 1, kPages)),
        page_table(a.tensor(Type::kI32, kMaxPages, kRequests)),
        lengths(a.tensor(Type::kI32, kRequests)),
        slots(a.tensor(Type::kI32, kRequests)),
        blocks(a.tensor(Type::kI32, kTopk, kRequests, kKvHeads)),
        out(a.tensor(Type::kF32, kDim, kHeads, kRequests)) {
    for (int32_t i = 0; i < kPages; ++i) ints(page_table)[i] = static_cast<int32_t>((i * 37 + 5) % kPages);
  }

  // What the model has computed for the token after `step` others.
  void next(int step) {
    uint32_t seed = static_cast<uint32_t>(step) * 100;
    for (const Tensor* t : {&q, &k, &v, &index_q, &index_k}) fill(*t, ++seed);
    for (int64_t b = 0; b < kRequests; ++b) {
      const int32_t token = kFirstLengths[b] + step;
      ints(lengths)[b] = token + 1;
      ints(slots)[b] = static_cast<int32_t>(ints(page_table)[b * kMaxPages + token / kPage] * kPage + token % kPage);
    }
  }

  tessera_sequences requests() const {
    tessera_sequences s = {};
    s.seqlen_q = 1;
    s.page_table = view(page_table, 2);
    s.seqused_k = view(lengths, 1);
    return s;
  }
  tessera_append_kv_args append() const {
    return {view(k16, 3), view(v16, 3), view(slots, 1), view(k_cache, 4), view(v_cache, 4)};
  }
  tessera_append_kv_args append_index() const {
    return {view(index_k, 3), {}, view(slots, 1), view(index_cache, 4), {}};
  }
  tessera_msa_select_args select() const {
    const tessera_msa_index index = {view(index_q, 3), view(index_cache, 4), requests(), kBlock, 0};
    return {index, kTopk, 1, 0, view(blocks, 3)};
  }
  tessera_msa_sparse_attention_args attend() const {
    tessera_msa_sparse_attention_args a = {};
    a.q = view(q, 3);
    a.k = view(k_cache, 4);
    a.v = view(v_cache, 4);
    a.q2k_indices = view(blocks, 3);
    a.sequences = requests();
    a.block_size = kBlock;
    a.out = view(out, 3);
    return a;
  }

  Tensor q, k, v, k16, v16, index_q, index_k, k_cache, v_cache, index_cache, page_table, lengths, slots, blocks, out;
};

// Selection and attention again on the library's own threads, over the same caches. False: some bit differs.
bool same_bits(const Layer& layer, const Tensor& blocks, const Tensor& out) {
  tessera_msa_select_args select = layer.select();
  tessera_msa_sparse_attention_args attend = layer.attend();
  select.indices = attend.q2k_indices = view(blocks, 3);
  attend.out = view(out, 3);
  tessera::throw_if_failed(tessera_msa_select(&select, nullptr));
  tessera::throw_if_failed(tessera_msa_sparse_attention(&attend, nullptr));
  return std::memcmp(layer.blocks.data, blocks.data, blocks.nb[3]) == 0 &&
         std::memcmp(layer.out.data, out.data, out.nb[3]) == 0;
}

}  // namespace

int main() {
  host::Arena arena(64 << 20);
  Layer layer(arena);
  const Tensor own_blocks = arena.tensor(Type::kI32, kTopk, kRequests, kKvHeads);
  const Tensor own_out = arena.tensor(Type::kF32, kDim, kHeads, kRequests);
  fill(layer.index_cache, 7);  // the keys of the prompts
  for (const Tensor* cache : {&layer.k_cache, &layer.v_cache}) {
    for (int64_t i = 0; i < kPages * kKvHeads * kPage * kDim; ++i) {
      reinterpret_cast<uint16_t*>(cache->data)[i] = host::to_f16(static_cast<float>(i % 1009) / 500.0f - 1.0f);
    }
  }

  host::CastNode cast_k(layer.k, layer.k16), cast_v(layer.v, layer.v16);
  host::OpNode append(layer.append(), tessera_append_kv), append_index(layer.append_index(), tessera_append_kv);
  host::OpNode select(layer.select(), tessera_msa_select, tessera_msa_select_workspace_size);
  host::OpNode attend(layer.attend(), tessera_msa_sparse_attention, tessera_msa_sparse_attention_workspace_size);
  const host::Graph graph = {&cast_k, &cast_v, &append, &append_index, &select, &attend};

  // Planned once, for the longest that requests may become: what a part needs grows with the lengths.
  layer.next(0);
  for (int64_t b = 0; b < kRequests; ++b) ints(layer.lengths)[b] = kMaxPages * kPage;
  const size_t work_bytes = host::plan(graph, kThreads);
  char* const work = arena.take(work_bytes);
  host::Pool pool(kThreads);

  int64_t allocations = 0;
  for (int step = 0; step < kSteps; ++step) {
    layer.next(step);
    const int64_t before = allocations_so_far();
    if (!pool.compute(graph, work)) return 1;
    if (step > 0) allocations += allocations_so_far() - before;  // the first step wakes the threads for the first time
    if (!same_bits(layer, own_blocks, own_out)) {
      std::printf("step %d differs from the library's own threads\n", step);
      return 1;
    }
  }
  std::printf("%d steps on %d threads of the host: the same bits as on the library's\n", kSteps, kThreads);
  std::printf("work buffer: %zu bytes of the arena; allocations in steady state: %lld of %lld\n", work_bytes,
              static_cast<long long>(allocations), static_cast<long long>(allocations_so_far()));
  return allocations == 0 ? 0 : 1;
}
