#include "ops/merge_states/check.h"

#include <charconv>
#include <cstring>

#include "core/check.h"

namespace tessera::merge_states {
namespace {

constexpr std::initializer_list<int> kRanks = {1, 2, 3, 4, 5};

// "states[3] m". Every call makes a few for each state, so without an allocation and without printf.
struct Name {
  Name(const char* list, int64_t i, const char* part) {
    char* end = stpcpy(text, list);
    *end++ = '[';
    end = std::to_chars(end, end + 20, i).ptr;
    end = stpcpy(end, "] ");
    stpcpy(end, part);
  }
  char text[48];
};

void check_features(const char* name, const tessera_tensor& t, const tessera_tensor& like, const char* what,
                    Checker* c) {
  c->require(!c->ok() || t.ndim == like.ndim, [&] {
    return invalid(std::string(name) + " has " + std::to_string(t.ndim) + " axes; expected " +
                   std::to_string(like.ndim) + " as " + what);
  });
  for (int axis = 0; c->ok() && axis < like.ndim; ++axis) c->axis(name, t, axis, like.shape[axis], what);
  c->unit_feature(name, t);
}

// What messages call the arguments: "states[3] m" and "partials[3] lse".
struct Names {
  const char *list, *o, *l, *m;
};

void check_states(const Problem& p, const Names& names, std::initializer_list<tessera_dtype> dtypes, Checker* c) {
  const Name first(names.list, 0, names.o);
  for (int64_t i = 0; c->ok() && i < p.num_states; ++i) {
    const Name o(names.list, i, names.o);
    c->tensor(o.text, p.o[i], "[..., Dv]", kRanks, dtypes);
    c->same_dtype(o.text, p.o[i], first.text, p.o[0]);
    check_features(o.text, p.o[i], p.o[0], first.text, c);
    if (p.l != nullptr) c->per_row(Name(names.list, i, names.l).text, p.l[i], p.o[0], first.text, TESSERA_F32);
    c->per_row(Name(names.list, i, names.m).text, p.m[i], p.o[0], first.text, TESSERA_F32);
  }
  if (!c->ok()) return;
  c->require(p.o[0].shape[p.o[0].ndim - 1] > 0,
             [&] { return invalid(std::string(first.text) + " needs at least one feature"); });
}

void check_disjoint(const char* name, const tessera_tensor& out, const Problem& p, const Names& names, Checker* c) {
  c->output(name, out);
  for (int64_t i = 0; c->ok() && i < p.num_states; ++i) {
    c->disjoint(name, out, Name(names.list, i, names.o).text, p.o[i]);
    if (p.l != nullptr) c->disjoint(name, out, Name(names.list, i, names.l).text, as_vector(p.l[i]));
    c->disjoint(name, out, Name(names.list, i, names.m).text, as_vector(p.m[i]));
  }
}

void check_out(const Problem& p, const Names& names, std::initializer_list<tessera_dtype> dtypes, Checker* c) {
  c->tensor("out", p.out, "[..., Dv]", kRanks, dtypes);
  check_features("out", p.out, p.o[0], Name(names.list, 0, names.o).text, c);
  check_disjoint("out", p.out, p, names, c);
}

void count_rows(Problem* p) {
  const int last = p->out.ndim - 1;
  p->dim = p->out.shape[last];
  p->rows = is_empty(p->out) ? 0 : 1;
  for (int axis = 0; p->rows != 0 && axis < last; ++axis) p->rows *= p->out.shape[axis];
}

Status num_states_status(int64_t n) {
  return n >= 1 ? Status{} : invalid("num_states is " + std::to_string(n) + "; expected at least 1");
}

}  // namespace

Status check(const tessera_cp_merge_args& args, Problem* p) {
  if (Status s = num_states_status(args.num_states); !s.ok()) return s;
  if (args.o == nullptr || args.l == nullptr || args.m == nullptr) return invalid("o, l or m is NULL");
  *p = {args.o, args.l, args.m, args.num_states, args.out, {}, 0, 0};
  constexpr Names kNames = {"states", "o", "l", "m"};
  Checker c;
  check_states(*p, kNames, {TESSERA_F32}, &c);
  check_out(*p, kNames, {TESSERA_BF16, TESSERA_F16, TESSERA_F32}, &c);
  if (c.ok()) count_rows(p);
  return c.take();
}

Status check(const tessera_merge_states_args& args, Problem* p) {
  if (Status s = num_states_status(args.num_states); !s.ok()) return s;
  if (args.partial_out == nullptr || args.partial_lse == nullptr) return invalid("partial_out or partial_lse is NULL");
  *p = {args.partial_out, nullptr, args.partial_lse, args.num_states, args.out, args.lse, 0, 0};
  constexpr Names kNames = {"partials", "out", nullptr, "lse"};
  Checker c;
  check_states(*p, kNames, {TESSERA_BF16, TESSERA_F16, TESSERA_F32}, &c);
  check_out(*p, kNames, {TESSERA_BF16, TESSERA_F16, TESSERA_F32}, &c);
  c.same_dtype("out", p->out, "partials[0] out", p->o[0]);
  c.per_row("lse", p->lse, p->out, "out", TESSERA_F32);
  check_disjoint("lse", as_vector(p->lse), *p, kNames, &c);
  c.disjoint("lse", as_vector(p->lse), "out", p->out);
  if (c.ok()) count_rows(p);
  return c.take();
}

}  // namespace tessera::merge_states
