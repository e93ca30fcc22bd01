#include "core/sequences.h"

#include <algorithm>

#include "core/check_rows.h"

namespace tessera {

KeyForm key_form(const tessera_sequences& s, int k_axes) {
  if (given(s.page_table) || given(s.seqused_k)) return k_axes == 5 ? KeyForm::kPagedPacked : KeyForm::kPaged;
  return given(s.cu_seqlens_k) ? KeyForm::kPacked : KeyForm::kBatch;
}

bool is_paged(KeyForm form) { return form == KeyForm::kPaged || form == KeyForm::kPagedPacked; }

const char* key_axes(KeyForm form) {
  switch (form) {
    case KeyForm::kBatch: return "[B, Sk, Hkv, D]";
    case KeyForm::kPacked: return "[total_k, Hkv, D]";
    case KeyForm::kPaged: return "[P, Hkv, ps, D]";
    case KeyForm::kPagedPacked: break;
  }
  return "[P, Hkv, ceil(D/e), ps, e]";
}

const char* value_axes(KeyForm form) {
  switch (form) {
    case KeyForm::kBatch: return "[B, Sk, Hkv, Dv]";
    case KeyForm::kPacked: return "[total_k, Hkv, Dv]";
    case KeyForm::kPaged: return "[P, Hkv, ps, Dv]";
    case KeyForm::kPagedPacked: break;
  }
  return "[P, Hkv, ceil(ps/e), Dv, e]";
}

int key_rank(KeyForm form) { return form == KeyForm::kPacked ? 3 : form == KeyForm::kPagedPacked ? 5 : 4; }

int key_heads_axis(KeyForm form) { return form == KeyForm::kBatch ? 2 : 1; }

KeyView key_view(KeyForm form, const tessera_tensor& k) {
  const int64_t* s = k.stride;
  switch (form) {
    case KeyForm::kBatch: return {k.data, s[0], 0, s[1], s[2]};
    case KeyForm::kPacked: return {k.data, 0, 0, s[0], s[1]};
    case KeyForm::kPaged:
    case KeyForm::kPagedPacked: break;
  }
  return {k.data, 0, s[0], s[2], s[1]};
}

Paging paging(KeyForm form, const tessera_tensor& k, const tessera_sequences& s) {
  if (!is_paged(form)) return {};
  const bool packed = form == KeyForm::kPagedPacked;
  return {static_cast<const int32_t*>(s.page_table.data),
          s.page_table.stride[0],
          s.page_table.stride[1],
          k.shape[0],
          k.shape[packed ? 3 : 2],
          packed,
          1};
}

Sequences check_sequences(const tessera_tensor& q, bool packed_q, const tessera_tensor& k, const tessera_sequences& s,
                          Checker* c) {
  Sequences all = {};
  all.packed_q = packed_q;
  all.rows = packed_q ? q.shape[0] : q.shape[1];
  all.count = q.shape[0];
  all.seqlen_q = all.rows;
  const char* batch = "B of q";
  if (!packed_q) {
    c->require(!given(s.cu_seqlens_q) && s.seqlen_q == 0,
               [] { return invalid("cu_seqlens_q is for packed rows; q has an axis for the requests"); });
  } else if (given(s.cu_seqlens_q)) {
    c->require(s.seqlen_q == 0, [] { return invalid("seqlen_q and cu_seqlens_q exclude each other"); });
    all.cu_q = check_bounds("cu_seqlens_q", s.cu_seqlens_q, &all.count, c);
    batch = "B of cu_seqlens_q";
  } else {
    c->require(s.seqlen_q > 0, [&] {
      return invalid(s.seqlen_q == 0 ? "cu_seqlens_q is missing"
                                     : "seqlen_q is " + std::to_string(s.seqlen_q) + "; it is at least 1");
    });
    c->require(s.seqlen_q <= 0 || all.rows % s.seqlen_q == 0, [&] {
      return invalid("q has " + std::to_string(all.rows) + " rows, not a multiple of seqlen_q " +
                     std::to_string(s.seqlen_q));
    });
    all.seqlen_q = s.seqlen_q;
    all.count = s.seqlen_q > 0 ? all.rows / s.seqlen_q : 0;
    batch = "B, the rows of q over seqlen_q";
  }
  const KeyForm form = key_form(s, k.ndim);
  if (is_paged(form)) {
    c->require(!given(s.cu_seqlens_k),
               [] { return invalid("cu_seqlens_k is for packed keys; page_table and seqused_k are for paged ones"); });
    c->tensor("page_table", s.page_table, "[B, max_pages]", {2}, {TESSERA_I32});
    c->axis("page_table", s.page_table, 0, all.count, batch);
    all.used_k = check_ints("seqused_k", s.seqused_k, "[B]", all.count, batch, c);
    if (!c->ok()) return all;
    if (__builtin_mul_overflow(s.page_table.shape[1], paging(form, k, s).page_size, &all.keys)) all.keys = INT64_MAX;
  } else if (form == KeyForm::kPacked) {
    all.cu_k = check_ints("cu_seqlens_k", s.cu_seqlens_k, "[B + 1]", all.count + 1, "B + 1", c);
    all.keys = k.shape[0];
  } else {
    c->require(!packed_q, [] { return invalid("cu_seqlens_k, or page_table and seqused_k, are missing"); });
    c->axis("k", k, 0, all.count, batch);
    all.keys = k.shape[1];
  }
  if (given(s.q_offset)) all.q_offset = check_ints("q_offset", s.q_offset, "[B]", all.count, batch, c);
  return all;
}

// *taken: rows before it belong to earlier requests.
Sequence resolve(const Sequences& s, int64_t b, int64_t* taken) {
  Sequence one = {0, s.seqlen_q, 0, s.keys, 0};
  if (s.cu_q.data != nullptr) {
    const int64_t begin = s.cu_q[b];
    const int64_t end = s.cu_q[b + 1];
    const bool inside = begin >= *taken && begin <= end && end <= s.rows;
    one.row = inside ? begin : *taken;
    one.rows = inside ? end - begin : 0;
    *taken = one.row + one.rows;
  } else if (s.packed_q) {
    one.row = b * s.seqlen_q;
  }
  if (s.cu_k.data != nullptr) {
    const int64_t begin = s.cu_k[b];
    const int64_t end = s.cu_k[b + 1];
    const bool inside = begin >= 0 && begin <= end && end <= s.keys;
    one.key = inside ? begin : 0;
    one.keys = inside ? end - begin : 0;
  } else if (s.used_k.data != nullptr) {
    one.keys = std::clamp<int64_t>(s.used_k[b], 0, s.keys);
  }
  one.offset = s.q_offset.data != nullptr ? s.q_offset[b] : one.keys - one.rows;
  return one;
}

void resolve(const Sequences& s, Sequence* table) {
  int64_t taken = 0;
  for (int64_t b = 0; b < s.count; ++b) table[b] = resolve(s, b, &taken);
}

}  // namespace tessera
