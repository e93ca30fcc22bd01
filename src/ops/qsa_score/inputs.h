// The inputs that all of QSA's scores and selections have: rows of queries, weights, keys. Part of check.cc.
#ifndef TESSERA_OPS_QSA_SCORE_INPUTS_H_
#define TESSERA_OPS_QSA_SCORE_INPUTS_H_

#include <initializer_list>

#include "core/check_rows.h"
#include "ops/qsa_score/problem.h"

namespace tessera::qsa_score {

// What messages call the arguments that have other names in other operators.
struct Names {
  const char* q;
  const char* k;
  const char* table;
};

// Query rows: [B, Q, Hi, D], or, packed, [R, Hi, D].
struct Queries {
  const tessera_tensor& q;
  const tessera_tensor& weights;
  const char* axes;
  const char* weights_axes;
  bool packed;
};

// q, weights, the scale and the last axes of k, which has `key_axes`.
void check_queries(const Names& names, const Queries& a, const tessera_tensor& k, const char* key_axes,
                   std::initializer_list<int> key_ranks, const float* scale, Checker* c, Problem* p);

// Pages [P, ps, D] or [P, ps, 1, D] of all requests.
void check_pages(const Names& names, const tessera_tensor& k, const tessera_tensor& table, Checker* c, Problem* p);

// The last steps, once all has been checked: what follows from the numbers of keys and of those to keep.
void finish(Problem* p);
void finish_scores(const tessera_tensor& scores, bool packed, Problem* p);

}  // namespace tessera::qsa_score

#endif  // TESSERA_OPS_QSA_SCORE_INPUTS_H_
