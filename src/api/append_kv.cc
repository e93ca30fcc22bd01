#include "ops/append_kv/append_kv.h"

#include "api/operator.h"
#include "ops/append_kv/check.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_append_kv(const tessera_append_kv_args* args, const tessera_context* context) {
  return run_operator(args, context, append_kv::check, append_kv::run, reference_append_kv);
}
