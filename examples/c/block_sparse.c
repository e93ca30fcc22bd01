/* Two query tokens over three blocks of two keys, from C: the first query sees blocks 0 and 2, the second 1 and 2. */
#include <stdio.h>
#include <tessera/tessera.h>

int main(void) {
  float q[2] = {0, 0}; /* equal scores: the result is the mean of the values */
  float k[6] = {1, 2, 3, 4, 5, 6};
  float v[6] = {10, 10, 20, 20, 30, 30};
  float out[2];
  int32_t blocks[4] = {0, 2, 1, 2};
  const tessera_block_sparse_gqa_prefill_args args = {
      .q = {q, TESSERA_F32, 4, {1, 2, 1, 1}, {2, 1, 1, 1}},
      .k = {k, TESSERA_F32, 4, {1, 6, 1, 1}, {6, 1, 1, 1}},
      .v = {v, TESSERA_F32, 4, {1, 6, 1, 1}, {6, 1, 1, 1}},
      .kv_indices = {blocks, TESSERA_I32, 3, {1, 2, 2}, {4, 2, 1}},
      .block_size = 2,
      .block_q = 1,
      .mask = TESSERA_MASK_NONE,
      .out = {out, TESSERA_F32, 4, {1, 2, 1, 1}, {2, 1, 1, 1}},
  };
  if (tessera_block_sparse_gqa_prefill(&args, NULL) != TESSERA_OK) {
    fprintf(stderr, "%s\n", tessera_last_error());
    return 1;
  }
  printf("means over blocks 0 and 2, 1 and 2: %g %g\n", out[0], out[1]);
  return 0;
}
