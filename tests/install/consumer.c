/* A program of someone else's in C99: the mean of two values, and a refusal. */
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

int main(void) {
  float q = 0, k[2] = {1, 2}, v[2] = {10, 20}, out = 0;
  int32_t block = 0;
  tessera_block_sparse_gqa_prefill_args args = {
      .q = {&q, TESSERA_F32, 4, {1, 1, 1, 1}, {1, 1, 1, 1}},
      .k = {k, TESSERA_F32, 4, {1, 2, 1, 1}, {2, 1, 1, 1}},
      .v = {v, TESSERA_F32, 4, {1, 2, 1, 1}, {2, 1, 1, 1}},
      .kv_indices = {&block, TESSERA_I32, 3, {1, 1, 1}, {1, 1, 1}},
      .out = {&out, TESSERA_F32, 4, {1, 1, 1, 1}, {1, 1, 1, 1}},
  };
  if (tessera_abi_version() != TESSERA_ABI_VERSION) return 1;
  if (tessera_block_sparse_gqa_prefill(&args, NULL) != TESSERA_OK || out != 15) return 2;
  args.k.shape[0] = 2;
  if (tessera_block_sparse_gqa_prefill(&args, NULL) != TESSERA_INVALID_ARGUMENT) return 3;
  if (strstr(tessera_last_error(), "block_sparse_gqa_prefill: k") == NULL) return 4;
  printf("tessera %s\n", tessera_version());
  return 0;
}
