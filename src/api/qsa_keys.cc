#include "api/operator.h"
#include "ops/append_keys/append_keys.h"
#include "ops/append_keys/check.h"
#include "ops/compress_keys/check.h"
#include "ops/compress_keys/compress_keys.h"
#include "ops/expand_blocks/check.h"
#include "ops/expand_blocks/expand_blocks.h"
#include "ops/screen_keys/check.h"
#include "ops/screen_keys/screen_keys.h"
#include "reference/reference.h"

using namespace tessera;

tessera_status tessera_qsa_compress_keys(const tessera_qsa_compress_keys_args* args, const tessera_context* context) {
  return run_operator(args, context, compress_keys::check, compress_keys::run, reference_qsa_compress_keys);
}

tessera_status tessera_qsa_append_keys(const tessera_qsa_append_keys_args* args, const tessera_context* context) {
  return run_operator(args, context, append_keys::check, append_keys::run, reference_qsa_append_keys);
}

tessera_status tessera_qsa_expand_blocks(const tessera_qsa_expand_blocks_args* args, const tessera_context* context) {
  return run_operator(args, context, expand_blocks::check, expand_blocks::run, reference_qsa_expand_blocks);
}

tessera_status tessera_qsa_screen_keys(const tessera_qsa_screen_keys_args* args, const tessera_context* context) {
  return run_operator(args, context, screen_keys::check, screen_keys::run, reference_qsa_screen_keys);
}
