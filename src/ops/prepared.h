// What happens between the check of a call and its run: its requests are resolved, its variant is chosen, its plan made.
// Not for files built with ISA flags.
#ifndef TESSERA_OPS_PREPARED_H_
#define TESSERA_OPS_PREPARED_H_

#include <cstddef>
#include <span>
#include <utility>

#include "core/status.h"
#include "ops/choose.h"
#include "ops/layout.h"
#include "runtime/executor.h"
#include "runtime/workspace.h"
#include "tessera/tessera.h"

namespace tessera {

// A plan depends on the requests' lengths, and its memory on the plan; so the table of requests comes first, at the
// beginning of the caller's workspace or in a buffer of its own. The operator's namespace has
//   int64_t table_entries(const Problem&);
//   void resolve(Entry* table, Problem*);  // fills the table; the problem points to it from then on
//   Plan make_plan(const Problem&, const Kernel&, bool whole, int workers);
template <class Problem, class Entry, class Kernel>
class Prepared {
 public:
  using Plan = decltype(make_plan(std::declval<const Problem&>(), std::declval<const Kernel&>(), true, 1));

  Prepared(const Problem& checked, std::span<const KernelVariant<Kernel>> variants, const tessera_context& context,
           const Executor& executor)
      : problem(checked), table_(context, table_bytes(checked)) {
    const KernelVariant<Kernel>* const variant = choose_variant(variants, context.variant, dtypes_of(checked), &status);
    if (variant == nullptr) return;
    resolve(reinterpret_cast<Entry*>(table_.data()), &problem);
    // A part of a call cannot wait for what other parts make.
    plan = make_plan(problem, *variant->kernel(dtypes_of(problem)), executor.num_parts() == 1, executor.workers());
  }

  // The memory of the plan.
  Workspace workspace(const tessera_context& context) const { return {context, plan.bytes, table_bytes(problem)}; }

  // What a call needs in all.
  static Status workspace_size(const Problem& checked, std::span<const KernelVariant<Kernel>> variants,
                               tessera_context context, size_t* bytes) {
    context.workspace = nullptr;
    const Prepared call(checked, variants, context, Executor(context.executor));
    *bytes = table_bytes(checked) + call.plan.bytes;
    return call.status;
  }

  Status status;  // why there is no plan
  Problem problem;
  Plan plan = {};

 private:
  static size_t table_bytes(const Problem& p) {
    Layout layout;
    layout.add(table_entries(p), sizeof(Entry));
    return layout.bytes();
  }

  Workspace table_;
};

}  // namespace tessera

#endif  // TESSERA_OPS_PREPARED_H_
