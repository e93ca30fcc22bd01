// Merging partial results of disjoint sets of keys: checked, and the same for both public forms.
#ifndef TESSERA_OPS_MERGE_STATES_PROBLEM_H_
#define TESSERA_OPS_MERGE_STATES_PROBLEM_H_

#include <stdint.h>

#include "tessera/tessera.h"

namespace tessera::merge_states {

// States are views of equal shapes, each with strides of its own. A partial (out, lse) is the state (out, 1, lse).
struct Problem {
  const tessera_tensor* o;  // num_states of [..., dim]
  const tessera_tensor* l;  // num_states of f32 [...]; null: every l is 1, and the merged lse is wanted
  const tessera_tensor* m;  // num_states of f32 [...]
  int64_t num_states;
  tessera_tensor out;  // [..., dim]
  tessera_tensor lse;  // f32 [...]; only if l is null
  int64_t rows;        // product of [...]
  int64_t dim;
};

// The merge of rows [begin, end) for one ISA and dtype of out.
struct Kernel {
  void (*partials)(const Problem&, int64_t begin, int64_t end);  // o of out's dtype
  void (*states)(const Problem&, int64_t begin, int64_t end);    // o of f32
};

}  // namespace tessera::merge_states

#endif  // TESSERA_OPS_MERGE_STATES_PROBLEM_H_
