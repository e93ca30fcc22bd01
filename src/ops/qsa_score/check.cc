#include "ops/qsa_score/check.h"

#include <string>

#include "ops/qsa_score/inputs.h"

namespace tessera::qsa_score {
namespace {

constexpr Names kScoreNames = {"q_idx", "block_keys", "block_table"};
constexpr Names kPrefillNames = {"q", "k", "page_table"};
constexpr Names kDecodeNames = {"q", "k_cache", "page_table"};

void check_index(const tessera_qsa_index& a, Checker* c, Problem* p) {
  const bool packed = a.q.ndim == 3;
  const bool paged = given(a.page_table);
  c->require(!given(a.q) || packed || a.q.ndim == 4, [&] {
    return invalid("q_idx has " + std::to_string(a.q.ndim) + " axes; expected [B, Q, Hi, D] or [total_q, Hi, D]");
  });
  const Queries queries = {a.q, a.weights, packed ? "[total_q, Hi, D]" : "[B, Q, Hi, D]",
                           packed ? "[total_q, Hi]" : "[B, Q, Hi]", packed};
  if (paged) {
    check_queries(kScoreNames, queries, a.k, "[P, ps, D] or [P, ps, 1, D]", {3, 4}, a.scale, c, p);
  } else {
    check_queries(kScoreNames, queries, a.k, "[B, N, D]", {3}, a.scale, c, p);
  }
  if (!c->ok()) return;
  p->visibility.block = a.block_size == 0 ? kDefaultBlock : a.block_size;
  c->require(p->visibility.block > 0,
             [&] { return invalid("block_size is " + std::to_string(a.block_size) + "; expected at least 1"); });
  if (paged) {
    check_pages(kScoreNames, a.k, a.page_table, c, p);
  } else {
    p->k = {a.k.data, a.k.stride[0], 0, a.k.stride[1], 0};
    p->rows.requests = a.k.shape[0];
    p->keys = a.k.shape[1];
  }
  if (!c->ok()) return;
  const char* const batch = paged ? "B of block_table" : "B of block_keys";
  const RowArguments more = {a.cu_seqlens_q, a.token_to_req, a.query_positions, a.seq_lens_q};
  check_rows("q_idx", a.q, packed, more, batch, &p->rows, &p->visibility.positions, c);
  if (given(a.seq_lens_k)) {
    p->visibility.seq_lens_k = check_ints("seq_lens_k", a.seq_lens_k, "[B]", p->rows.requests, batch, c);
  }
}

// A result, one row of `entries` for each row of q, that shares no memory with an input.
void check_result(const char* name, const tessera_tensor& t, const char* axes, tessera_dtype dtype,
                  const tessera_tensor& q, bool packed, Checker* c) {
  c->tensor(name, t, axes, {packed ? 2 : 3}, {dtype});
  for (int i = 0; i < (packed ? 1 : 2); ++i) c->axis(name, t, i, q.shape[i], "as q_idx");
  c->output(name, t);
}

void check_apart(const char* name, const tessera_tensor& t, const tessera_qsa_index& a, Checker* c) {
  c->disjoint(name, t, "q_idx", a.q);
  c->disjoint(name, t, "block_keys", a.k);
  c->disjoint(name, t, "weights", a.weights);
  c->disjoint(name, t, "cu_seqlens_q", a.cu_seqlens_q);
  c->disjoint(name, t, "token_to_req", a.token_to_req);
  c->disjoint(name, t, "query_positions", a.query_positions);
  c->disjoint(name, t, "seq_lens_q", a.seq_lens_q);
  c->disjoint(name, t, "seq_lens_k", a.seq_lens_k);
  c->disjoint(name, t, "block_table", a.page_table);
}

// Hints, which count where screen.h can make something of them.
void check_screen(const tessera_qsa_select_args& a, Checker* c, Problem* p) {
  const tessera_tensor &codes = a.screen_codes, &scales = a.screen_scales, &k = a.index.k;
  c->require(given(codes) == given(scales),
             [] { return invalid("screen_codes and screen_scales are given together or not at all"); });
  if (!c->ok() || !given(codes)) return;
  c->tensor("screen_codes", codes, "as block_keys", {k.ndim}, {TESSERA_I8});
  c->tensor("screen_scales", scales, "as block_keys without D", {k.ndim - 1}, {TESSERA_F32});
  c->unit_feature("screen_codes", codes);
  for (int i = 0; i < k.ndim; ++i) c->axis("screen_codes", codes, i, k.shape[i], "as block_keys");
  for (int i = 0; i + 1 < k.ndim; ++i) c->axis("screen_scales", scales, i, k.shape[i], "as block_keys");
  const bool fits = p->dim % 16 == 0 && p->dim <= kScreenDim && p->heads <= kScreenHeads;
  if (!c->ok() || !fits) return;
  const bool paged = p->pages.table != nullptr;
  const auto view = [&](const tessera_tensor& t) {
    return KeyView{t.data, paged ? 0 : t.stride[0], paged ? t.stride[0] : 0, t.stride[1], 0};
  };
  p->codes = view(codes);
  p->scales = view(scales);
}

}  // namespace

Status check(const tessera_qsa_indexer_mqa_score_args& a, Problem* p) {
  Checker c;
  *p = {};
  check_index(a.index, &c, p);
  const bool packed = a.index.q.ndim == 3;
  if (c.ok()) {
    check_result("scores", a.scores, packed ? "[total_q, N]" : "[B, Q, N]", TESSERA_F32, a.index.q, packed, &c);
    check_apart("scores", a.scores, a.index, &c);
  }
  if (!c.ok()) return c.take();
  finish_scores(a.scores, packed, p);
  return {};
}

Status check(const tessera_qsa_select_args& a, Problem* p) {
  Checker c;
  *p = {};
  check_index(a.index, &c, p);
  c.require(a.topk >= 1, [&] { return invalid("topk is " + std::to_string(a.topk) + "; expected at least 1"); });
  c.require(given(a.indices) || given(a.token_indices), [] { return invalid("indices is missing"); });
  const bool packed = a.index.q.ndim == 3;
  if (c.ok() && given(a.indices)) {
    const tessera_tensor& t = a.indices;
    check_result("indices", t, packed ? "[total_q, topk]" : "[B, Q, topk]", TESSERA_I32, a.index.q, packed, &c);
    c.axis("indices", t, packed ? 1 : 2, a.topk, "topk");
    check_apart("indices", t, a.index, &c);
    p->ids = static_cast<int32_t*>(t.data);
    p->ids_stride = row_strides(t, packed);
    p->ids_entry = t.stride[packed ? 1 : 2];
  }
  if (c.ok() && given(a.token_indices)) {
    const tessera_tensor& t = a.token_indices;
    const int64_t block = p->visibility.block;
    int64_t width = 0;
    const bool fits =
        !__builtin_mul_overflow(a.topk, block, &width) && !__builtin_add_overflow(width, block - 1, &width);
    c.require(fits, [&] { return invalid("topk " + std::to_string(a.topk) + " blocks are too many tokens"); });
    check_result("token_indices", t, packed ? "[total_q, topk * bs + bs - 1]" : "[B, Q, topk * bs + bs - 1]",
                 TESSERA_I32, a.index.q, packed, &c);
    c.axis("token_indices", t, packed ? 1 : 2, width, "topk * bs + bs - 1");
    check_apart("token_indices", t, a.index, &c);
    c.disjoint("token_indices", t, "indices", a.indices);
    p->tokens = static_cast<int32_t*>(t.data);
    p->tokens_stride = row_strides(t, packed);
    p->tokens_entry = t.stride[packed ? 1 : 2];
  }
  if (c.ok()) check_screen(a, &c, p);
  c.disjoint("indices", a.indices, "screen_codes", a.screen_codes);
  c.disjoint("indices", a.indices, "screen_scales", a.screen_scales);
  c.disjoint("token_indices", a.token_indices, "screen_codes", a.screen_codes);
  c.disjoint("token_indices", a.token_indices, "screen_scales", a.screen_scales);
  if (!c.ok()) return c.take();
  p->selects = true;
  p->topk = a.topk;
  finish(p);
  return {};
}

Status check(const tessera_qsa_mqa_prefill_args& a, Problem* p) {
  Checker c;
  *p = {};
  check_queries(kPrefillNames, {a.q, a.weights, "[rows, Hi, D]", "[rows, Hi]", true}, a.k, "[keys, D] or [keys, 1, D]",
                {2, 3}, a.scale, &c, p);
  if (c.ok() && a.k.ndim == 3) c.axis("k", a.k, 1, 1, "one key head");
  if (c.ok()) {
    p->visibility.row_starts = check_ints("row_starts", a.row_starts, "[rows]", p->rows.rows, "rows of q", &c);
    p->visibility.row_ends = check_ints("row_ends", a.row_ends, "[rows]", p->rows.rows, "rows of q", &c);
    c.tensor("scores", a.scores, "[rows, keys]", {2}, {TESSERA_F32});
  }
  if (c.ok()) {
    c.axis("scores", a.scores, 0, p->rows.rows, "rows of q");
    c.axis("scores", a.scores, 1, a.k.shape[0], "keys of k");
    c.output("scores", a.scores);
    c.disjoint("scores", a.scores, "q", a.q);
    c.disjoint("scores", a.scores, "k", a.k);
    c.disjoint("scores", a.scores, "weights", a.weights);
    c.disjoint("scores", a.scores, "row_starts", a.row_starts);
    c.disjoint("scores", a.scores, "row_ends", a.row_ends);
  }
  if (!c.ok()) return c.take();
  p->rows.requests = 1;
  p->keys = a.k.shape[0];
  p->k = {a.k.data, 0, 0, a.k.stride[0], 0};
  finish_scores(a.scores, true, p);
  return {};
}

Status check(const tessera_qsa_mqa_decode_args& a, Problem* p) {
  Checker c;
  *p = {};
  // Without an axis for them, there is one row for each request.
  const auto with_rows = [](const tessera_tensor& t, int rank) {
    tessera_tensor r = t;
    if (t.ndim != rank - 1) return r;
    for (int i = rank - 1; i > 1; --i) {
      r.shape[i] = t.shape[i - 1];
      r.stride[i] = t.stride[i - 1];
    }
    r.shape[1] = 1;
    r.ndim = rank;
    return r;
  };
  const bool single = a.q.ndim == 3;
  const tessera_tensor q = with_rows(a.q, 4);
  const tessera_tensor weights = single && given(a.weights) ? with_rows(a.weights, 3) : a.weights;
  c.require(!given(a.q) || single || a.q.ndim == 4, [&] {
    return invalid("q has " + std::to_string(a.q.ndim) + " axes; expected [B, n, Hi, D] or [B, Hi, D]");
  });
  check_queries(kDecodeNames, {q, weights, "[B, n, Hi, D] or [B, Hi, D]", "[B, n, Hi] or [B, Hi]", false}, a.k_cache,
                "[P, ps, 1, D] or [P, ps, D]", {3, 4}, a.scale, &c, p);
  if (c.ok()) check_pages(kDecodeNames, a.k_cache, a.page_table, &c, p);
  if (c.ok()) {
    c.axis("page_table", a.page_table, 0, q.shape[0], "B of q");
    c.tensor("context_lens", a.context_lens, "[B] or [B, n]", {1, 2}, {TESSERA_I32});
  }
  if (c.ok()) {
    c.axis("context_lens", a.context_lens, 0, q.shape[0], "B of q");
    if (a.context_lens.ndim == 2) c.axis("context_lens", a.context_lens, 1, q.shape[1], "n of q");
    c.tensor("scores", a.scores, "[B * n, max_model_len]", {2}, {TESSERA_F32});
  }
  if (c.ok()) {
    c.axis("scores", a.scores, 0, p->rows.rows, "B * n of q");
    c.output("scores", a.scores);
    c.disjoint("scores", a.scores, "q", a.q);
    c.disjoint("scores", a.scores, "k_cache", a.k_cache);
    c.disjoint("scores", a.scores, "weights", a.weights);
    c.disjoint("scores", a.scores, "page_table", a.page_table);
    c.disjoint("scores", a.scores, "context_lens", a.context_lens);
  }
  if (!c.ok()) return c.take();
  const tessera_tensor& lens = a.context_lens;
  p->visibility.context_lens = {static_cast<const int32_t*>(lens.data),
                                {lens.stride[0], lens.ndim == 2 ? lens.stride[1] : 0}};
  finish_scores(a.scores, true, p);
  if (p->rows.rows > 0)
    p->scores_stride.request = a.scores.stride[0] * p->rows.row_axis;  // [B * n, ...] as [B, n, ...]
  return {};
}

}  // namespace tessera::qsa_score
