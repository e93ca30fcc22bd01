#include "core/check_rows.h"

#include <algorithm>
#include <string>

namespace tessera {
namespace {

// Numbers of rows and of requests are int32 in what says whose rows are whose.
void check_count(const char* which, const char* name, int64_t count, Checker* c) {
  c->require(count <= INT32_MAX, [&] {
    return not_implemented(std::string(which) + name + " is " + std::to_string(count) + "; supported is up to " +
                           std::to_string(INT32_MAX));
  });
}

}  // namespace

Ints check_ints(const char* name, const tessera_tensor& t, const char* axes, int64_t size, const char* what,
                Checker* c) {
  c->tensor(name, t, axes, {1}, {TESSERA_I32});
  c->axis(name, t, 0, size, what);
  return {static_cast<const int32_t*>(t.data), t.stride[0]};
}

Ints check_bounds(const char* name, const tessera_tensor& t, int64_t* requests, Checker* c) {
  c->tensor(name, t, "[B + 1]", {1}, {TESSERA_I32});
  c->require(t.shape[0] > 0, [&] { return invalid(std::string(name) + " is empty; it has B + 1 entries"); });
  *requests = t.shape[0] - 1;
  return {static_cast<const int32_t*>(t.data), t.stride[0]};
}

RowForm row_form(const char* name, const tessera_tensor& q, bool packed, Checker* c) {
  RowForm form = {};
  form.row_axis = std::max<int64_t>(1, q.shape[packed ? 0 : 1]);
  form.rows = packed ? q.shape[0] : q.shape[0] * q.shape[1];
  check_count("number of rows of ", name, form.rows, c);
  return form;
}

void check_rows(const char* name, const tessera_tensor& q, bool packed, const RowArguments& a, const char* batch,
                RowForm* form, RowInts* positions, Checker* c) {
  check_count("", batch, form->requests, c);
  if (!packed) c->axis(name, q, 0, form->requests, batch);
  const bool told = given(a.cu_seqlens_q) || given(a.token_to_req);
  c->require(packed || !told, [&] {
    return invalid(std::string("cu_seqlens_q and token_to_req are for packed rows; ") + name +
                   " has an axis for the requests");
  });
  c->require(!packed || told || form->requests == 1 || form->rows == 0,
             [] { return invalid("cu_seqlens_q or token_to_req is missing; expected one for packed rows"); });
  const auto ints = [&](const char* which, const tessera_tensor& t, const char* axes, int64_t size, const char* what) {
    return given(t) ? check_ints(which, t, axes, size, what, c) : Ints{};
  };
  form->cu_q = ints("cu_seqlens_q", a.cu_seqlens_q, "[B + 1]", form->requests + 1, "B + 1");
  form->token_to_req = ints("token_to_req", a.token_to_req, "[total_q]", form->rows, "total_q");
  form->seq_lens_q = ints("seq_lens_q", a.seq_lens_q, "[B]", form->requests, batch);
  if (!given(a.query_positions)) return;
  const tessera_tensor& t = a.query_positions;
  c->tensor("query_positions", t, packed ? "[total_q]" : "[B, Q]", {packed ? 1 : 2}, {TESSERA_I32});
  for (int i = 0; i < (packed ? 1 : 2); ++i) c->axis("query_positions", t, i, q.shape[i], name);
  *positions = {static_cast<const int32_t*>(t.data), row_strides(t, packed)};
}

}  // namespace tessera
