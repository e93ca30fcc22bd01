#include "ops/token_attn/check.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>

#include "core/check_rows.h"
#include "core/packed_layout.h"

namespace tessera::token_attn {
namespace {

using Args = tessera_qsa_sparse_attention_args;

constexpr std::initializer_list<tessera_dtype> kFloats = {TESSERA_BF16, TESSERA_F16, TESSERA_F32};

enum class Form { kBatch, kPacked, kPaged, kPhysical };

Form form_of(const Args& a) {
  if (given(a.selected_kv_indices)) return Form::kPhysical;
  if (given(a.page_table)) return Form::kPaged;
  return given(a.cu_seqlens_k) ? Form::kPacked : Form::kBatch;
}

// Keys and values are pages in the packed layout.
bool has_units(const Args& a) { return a.k.ndim == 5; }
int64_t page_tokens(const Args& a) { return a.k.shape[has_units(a) ? 3 : 1]; }

const char* key_axes(Form form, bool units) {
  switch (form) {
    case Form::kBatch: return "[B, Sk, Hkv, D]";
    case Form::kPacked: return "[total_k, Hkv, D]";
    case Form::kPaged: return units ? "[P, Hkv, ceil(D/e), ps, e]" : "[P, ps, Hkv, D]";
    case Form::kPhysical: break;
  }
  return units ? "[P, Hkv, ceil(D/e), ps, e]" : "[slots, Hkv, D]";
}
const char* value_axes(Form form, bool units) {
  switch (form) {
    case Form::kBatch: return "[B, Sk, Hkv, Dv]";
    case Form::kPacked: return "[total_k, Hkv, Dv]";
    case Form::kPaged: return units ? "[P, Hkv, ceil(ps/e), Dv, e]" : "[P, ps, Hkv, Dv]";
    case Form::kPhysical: break;
  }
  return units ? "[P, Hkv, ceil(ps/e), Dv, e]" : "[slots, Hkv, Dv]";
}

bool is_packed(const Args& a) { return a.q.ndim == 3; }
int rows_of(const Args& a) { return is_packed(a) ? 1 : 2; }  // axes

View view_of(const tessera_tensor& t, bool packed) {
  const int rows = packed ? 1 : 2;
  return {row_strides(t, packed), t.stride[rows], t.ndim > rows + 1 ? t.stride[rows + 1] : 0};
}

// Ranks and dtypes of q, k and v, and the axes that k and v share.
void check_tensors(const Args& a, Form form, Checker* c) {
  c->tensor("query", a.q, "[B, Q, Hq, D] or [total_q, Hq, D]", {3, 4}, kFloats);
  const bool units = has_units(a) && (form == Form::kPaged || form == Form::kPhysical);
  c->require(!has_units(a) || units, [&] {
    return invalid(std::string("key has 5 axes, as in the packed layout, and no block_table") +
                   (form == Form::kPacked ? "; cu_seqlens_k is for keys of 3 axes" : "; expected one"));
  });
  c->require(!units || !given(a.v) || a.v.ndim == 5, [&] {
    return invalid("key has 5 axes, as in the packed layout, and value has " + std::to_string(a.v.ndim) +
                   "; both are expected in one layout");
  });
  const int rank = units ? 5 : form == Form::kPacked || form == Form::kPhysical ? 3 : 4;
  c->tensor("key", a.k, key_axes(form, units), {rank}, kFloats);
  c->tensor("value", a.v, value_axes(form, units), {rank}, kFloats);
  c->same_dtype("key", a.k, "query", a.q);
  c->same_dtype("value", a.v, "query", a.q);
  c->unit_feature("query", a.q);
  if (!c->ok()) return;
  const int64_t dim = a.q.shape[a.q.ndim - 1];
  if (units) {
    check_packed_keys("key", a.k, dim, "ceil(D/e), D of query", c);
    for (int i = 0; i < 2; ++i) c->axis("value", a.v, i, a.k.shape[i], "as key");
    check_packed_values("value", a.v, page_tokens(a), "ceil(ps/e), ps of key", c);
    return;
  }
  c->unit_feature("key", a.k);
  c->unit_feature("value", a.v);
  for (int i = 0; i + 1 < rank; ++i) c->axis("value", a.v, i, a.k.shape[i], "as key");
  c->axis("key", a.k, rank - 1, dim, "D of query");
}

void check_inputs(const Args& a, Form form, Checker* c, Problem* p) {
  check_tensors(a, form, c);
  if (!c->ok()) return;
  const int last = a.k.ndim - 1;
  p->dim = a.q.shape[a.q.ndim - 1];
  p->dim_v = a.v.shape[has_units(a) ? 3 : last];
  p->kv_heads = a.k.shape[has_units(a) ? 1 : last - 1];
  const int64_t heads = a.q.shape[a.q.ndim - 2];
  c->require(heads > 0 && p->kv_heads > 0 && heads % p->kv_heads == 0, [&] {
    return invalid("query has " + std::to_string(heads) + " heads and key has " + std::to_string(p->kv_heads) +
                   "; expected a positive multiple");
  });
  c->require(p->dim > 0, [] { return invalid("query needs at least one feature"); });
  c->require(p->dim_v > 0, [] { return invalid("value needs at least one feature"); });
  c->head_dim("query", p->dim);
  c->head_dim("value", p->dim_v);
  if (!c->ok()) return;
  p->group = heads / p->kv_heads;
  p->dtype = a.q.dtype;
  p->rows = row_form("query", a.q, is_packed(a), c);
  p->scale = a.softmax_scale != nullptr ? *a.softmax_scale : 1.0f / std::sqrt(static_cast<float>(p->dim));
  c->require(std::isfinite(p->scale),
             [&] { return invalid("scale is " + std::to_string(p->scale) + "; expected a finite number"); });
  p->q = a.q.data;
  p->q_view = view_of(a.q, is_packed(a));
}

KeyView key_view(Form form, const tessera_tensor& t) {
  const int64_t* s = t.stride;
  if (t.ndim == 5) return {t.data, 0, s[0], s[2], s[1]};
  switch (form) {
    case Form::kBatch: return {t.data, s[0], 0, s[1], s[2]};
    case Form::kPaged: return {t.data, 0, s[0], s[1], s[2]};
    case Form::kPacked:
    case Form::kPhysical: break;
  }
  return {t.data, 0, 0, s[0], s[1]};
}

// Pages of either layout, with or without a table; p->keys becomes what the table has room for.
void check_pages(const Args& a, Checker* c, Problem* p) {
  const tessera_tensor& t = a.page_table;
  const int64_t pages = a.k.shape[0], tokens = page_tokens(a);
  p->pages = {static_cast<const int32_t*>(t.data), t.stride[0], t.stride[1], pages, tokens, has_units(a), 1};
  const int64_t size = a.page_size == 0 ? tokens : a.page_size;
  c->require(size == tokens || (has_units(a) && tokens > 0 && size > 0 && size % tokens == 0), [&] {
    return invalid("page_size is " + std::to_string(size) + "; expected " + (has_units(a) ? "a multiple of " : "") +
                   std::to_string(tokens) + " (ps of key)");
  });
  p->keys = 0;
  if (!c->ok() || tokens == 0) return;
  p->pages.span = std::min<int64_t>(size / tokens, INT32_MAX);
  if (__builtin_mul_overflow(given(t) ? t.shape[1] : pages, size, &p->keys)) p->keys = INT64_MAX;
}

// Which keys each request has.
void check_keys(const Args& a, Form form, Checker* c, Problem* p) {
  p->k = key_view(form, a.k);
  p->v = key_view(form, a.v);
  p->rows.requests = a.k.shape[0];
  p->keys = form == Form::kBatch ? a.k.shape[1] : a.k.shape[0];
  p->physical = form == Form::kPhysical;
  c->require(form != Form::kPaged || !given(a.cu_seqlens_k),
             [] { return invalid("cu_seqlens_k is for packed keys; block_table is for paged ones"); });
  c->require(form == Form::kPaged || a.page_size == 0,
             [] { return invalid("page_size is for keys in pages; block_table is missing"); });
  if (p->physical) {
    p->rows.requests = 1;
    if (has_units(a)) check_pages(a, c, p);
  } else if (form == Form::kPaged) {
    const tessera_tensor& t = a.page_table;
    c->tensor("block_table", t, "[B, max_pages]", {2}, {TESSERA_I32});
    if (!c->ok()) return;
    p->rows.requests = t.shape[0];
    check_pages(a, c, p);
  } else if (form == Form::kPacked) {
    p->cu_k = check_bounds("cu_seqlens_k", a.cu_seqlens_k, &p->rows.requests, c);
  }
  p->keys = std::min<int64_t>(p->keys, INT32_MAX);
}

// Which request each row belongs to, where it stands and what it lists.
void check_rows(const Args& a, Form form, Checker* c, Problem* p) {
  const bool packed = is_packed(a);
  const char* const batch = form == Form::kPaged    ? "B of block_table"
                            : form == Form::kPacked ? "B of cu_seqlens_k"
                                                    : "B of key";
  const RowArguments more = {a.cu_seqlens_q, a.token_to_req, a.query_positions, a.seq_lens_q};
  tessera::check_rows("query", a.q, packed, more, batch, &p->rows, &p->positions, c);
  if (given(a.seq_lens_k)) p->seq_lens_k = check_ints("seq_lens_k", a.seq_lens_k, "[B]", p->rows.requests, batch, c);
  const char* const name = p->physical ? "selected_kv_indices" : "token_indices";
  const tessera_tensor& ids = p->physical ? a.selected_kv_indices : a.token_indices;
  c->tensor(name, ids, packed ? "[total_q, W]" : "[B, Q, W]", {rows_of(a) + 1}, {TESSERA_I32});
  for (int i = 0; i < rows_of(a); ++i) c->axis(name, ids, i, a.q.shape[i], "as query");
  if (!c->ok()) return;
  p->width = ids.shape[ids.ndim - 1];
  p->ids = static_cast<const int32_t*>(ids.data);
  p->ids_row = row_strides(ids, packed);
  p->ids_entry = ids.stride[ids.ndim - 1];
}

void check_physical(const Args& a, Checker* c) {
  const struct {
    const char* name;
    const tessera_tensor& tensor;
  } logical[] = {{"cu_seqlens_q", a.cu_seqlens_q},       {"token_to_req", a.token_to_req},
                 {"query_positions", a.query_positions}, {"seq_lens_q", a.seq_lens_q},
                 {"cu_seqlens_k", a.cu_seqlens_k},       {"seq_lens_k", a.seq_lens_k},
                 {"block_table", a.page_table},          {"gate", a.gate}};
  for (const auto& one : logical) {
    c->require(!given(one.tensor),
               [&] { return invalid(std::string(one.name) + " and selected_kv_indices exclude each other"); });
  }
  c->require(is_packed(a),
             [] { return invalid("query has an axis for the requests; selected_kv_indices takes packed rows"); });
}

// Rows and heads of query, then (`features`) Dv.
void check_like_out(const char* name, const tessera_tensor& t, const char* axes, bool features, const Args& a,
                    const Problem& p, std::initializer_list<tessera_dtype> dtypes, Checker* c) {
  c->tensor(name, t, axes, {rows_of(a) + (features ? 2 : 1)}, dtypes);
  for (int i = 0; i <= rows_of(a); ++i) c->axis(name, t, i, a.q.shape[i], "as query");
  if (features) c->axis(name, t, rows_of(a) + 1, p.dim_v, "Dv of value");
}

void check_apart(const char* name, const tessera_tensor& t, const Args& a, Checker* c) {
  c->output(name, t);
  const struct {
    const char* name;
    const tessera_tensor& tensor;
  } inputs[] = {{"query", a.q},
                {"key", a.k},
                {"value", a.v},
                {"token_indices", a.token_indices},
                {"selected_kv_indices", a.selected_kv_indices},
                {"cu_seqlens_q", a.cu_seqlens_q},
                {"token_to_req", a.token_to_req},
                {"query_positions", a.query_positions},
                {"seq_lens_q", a.seq_lens_q},
                {"cu_seqlens_k", a.cu_seqlens_k},
                {"seq_lens_k", a.seq_lens_k},
                {"block_table", a.page_table},
                {"gate", a.gate}};
  for (const auto& input : inputs) c->disjoint(name, t, input.name, input.tensor);
}

void check_outputs(const Args& a, Checker* c, Problem* p) {
  const bool packed = is_packed(a);
  check_like_out("out", a.out, packed ? "[total_q, Hq, Dv]" : "[B, Q, Hq, Dv]", true, a, *p, {a.q.dtype}, c);
  c->unit_feature("out", a.out);
  check_apart("out", a.out, a, c);
  if (given(a.lse)) {
    check_like_out("lse", a.lse, packed ? "[total_q, Hq]" : "[B, Q, Hq]", false, a, *p, {TESSERA_F32}, c);
    check_apart("lse", a.lse, a, c);
    c->disjoint("lse", a.lse, "out", a.out);
  }
  if (given(a.gate)) {
    const bool features = a.gate.ndim == rows_of(a) + 2;
    check_like_out("gate", a.gate, packed ? "[total_q, Hq, Dv] or [total_q, Hq]" : "[B, Q, Hq, Dv] or [B, Q, Hq]",
                   features, a, *p, {a.q.dtype, TESSERA_F32}, c);
  }
  if (!c->ok()) return;
  p->out = a.out.data;
  p->out_view = view_of(a.out, packed);
  p->lse = static_cast<float*>(a.lse.data);
  if (given(a.lse)) p->lse_view = view_of(a.lse, packed);
  if (!given(a.gate)) return;
  p->gate_view = view_of(a.gate, packed);
  p->gate = {a.gate.data, a.gate.dtype, p->gate_view.feature};
}

}  // namespace

Status check(const Args& a, Problem* p) {
  *p = {};
  const Form form = form_of(a);
  Checker c;
  c.require(!given(a.token_indices) || !given(a.selected_kv_indices),
            [] { return invalid("token_indices and selected_kv_indices exclude each other"); });
  check_inputs(a, form, &c, p);
  if (form == Form::kPhysical) check_physical(a, &c);
  c.require(a.num_splits >= 0,
            [&] { return invalid("num_splits is " + std::to_string(a.num_splits) + "; expected at least 1"); });
  p->splits = a.num_splits;
  if (c.ok()) check_keys(a, form, &c, p);
  if (c.ok()) check_rows(a, form, &c, p);
  if (c.ok()) check_outputs(a, &c, p);
  return c.take();
}

}  // namespace tessera::token_attn
