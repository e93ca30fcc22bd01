/* One decode step of a MiniMax-M3 layer, in C99: two requests over paged bf16 caches. The new key and value are written,
 * 16 blocks of 128 keys are chosen per KV head, and attention reads just those. Checked against the reference backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { kRequests = 2, kHeads = 64, kKvHeads = 4, kDim = 128, kBlock = 128, kPage = 64, kTopk = 16 };
enum { kMaxPages = 80, kPages = 96 };

static float q[kRequests * kHeads * kDim], index_q[kRequests * kKvHeads * kDim], index_k[kRequests * kDim];
static uint16_t k[kRequests * kKvHeads * kDim], v[kRequests * kKvHeads * kDim];
static uint16_t k_cache[kPages * kKvHeads * kPage * kDim], v_cache[kPages * kKvHeads * kPage * kDim];
static float index_cache[kPages * kPage * kDim];
static int32_t page_table[kRequests * kMaxPages], slots[kRequests];
static int32_t lengths[kRequests] = {5000, 300}; /* keys of each request, the new one included */
static int32_t blocks[kKvHeads * kRequests * kTopk];
static float out[kRequests * kHeads * kDim], expected[kRequests * kHeads * kDim];

/* Numbers in [-1, 1) that look random; bf16 is the upper half of an f32. */
static float number(void) {
  static uint32_t seed = 1;
  seed = seed * 1664525u + 1013904223u;
  return (float)(seed >> 8) / (1 << 23) - 1.0f;
}
static void fill(float* x, size_t n) {
  while (n-- > 0) *x++ = number();
}
static void fill_bf16(uint16_t* x, size_t n) {
  while (n-- > 0) {
    const float f = number();
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    *x++ = (uint16_t)(bits >> 16);
  }
}

/* What an engine does with a status: OK is 0; anything else has a message that names the operator and the argument. */
static int failed(tessera_status status) {
  if (status == TESSERA_OK) return 0;
  fprintf(stderr, "error %d: %s\n", (int)status, tessera_last_error());
  return 1;
}

/* The shape of a view as a list; its axes are dense. */
#define VIEW(data, dtype, ...) \
  tessera_dense(data, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

static tessera_sequences requests(void) {
  tessera_sequences s = {0};
  s.seqlen_q = 1; /* one new row each */
  s.page_table = VIEW(page_table, TESSERA_I32, kRequests, kMaxPages);
  s.seqused_k = VIEW(lengths, TESSERA_I32, kRequests);
  return s;
}

static tessera_status write_caches(const tessera_context* context) {
  tessera_append_kv_args kv = {
      .k = VIEW(k, TESSERA_BF16, kRequests, kKvHeads, kDim),
      .v = VIEW(v, TESSERA_BF16, kRequests, kKvHeads, kDim),
      .slots = VIEW(slots, TESSERA_I32, kRequests),
      .k_cache = VIEW(k_cache, TESSERA_BF16, kPages, kKvHeads, kPage, kDim),
      .v_cache = VIEW(v_cache, TESSERA_BF16, kPages, kKvHeads, kPage, kDim),
  };
  tessera_append_kv_args index = {
      .k = VIEW(index_k, TESSERA_F32, kRequests, 1, kDim),
      .slots = VIEW(slots, TESSERA_I32, kRequests),
      .k_cache = VIEW(index_cache, TESSERA_F32, kPages, 1, kPage, kDim),
  };
  const tessera_status status = tessera_append_kv(&kv, context);
  return status != TESSERA_OK ? status : tessera_append_kv(&index, context);
}

static tessera_status select_blocks(const tessera_context* context) {
  tessera_msa_select_args args = {
      .index = {.q = VIEW(index_q, TESSERA_F32, kRequests, kKvHeads, kDim),
                .k = VIEW(index_cache, TESSERA_F32, kPages, 1, kPage, kDim),
                .sequences = requests(),
                .block_size = kBlock},
      .topk = kTopk,
      .local_blocks = 1,
      .indices = VIEW(blocks, TESSERA_I32, kKvHeads, kRequests, kTopk),
  };
  return tessera_msa_select(&args, context);
}

static tessera_status attend(float* to, int64_t dim, const tessera_context* context) {
  tessera_msa_sparse_attention_args args = {
      .q = VIEW(q, TESSERA_F32, kRequests, kHeads, dim),
      .k = VIEW(k_cache, TESSERA_BF16, kPages, kKvHeads, kPage, kDim),
      .v = VIEW(v_cache, TESSERA_BF16, kPages, kKvHeads, kPage, kDim),
      .q2k_indices = VIEW(blocks, TESSERA_I32, kKvHeads, kRequests, kTopk),
      .sequences = requests(),
      .block_size = kBlock,
      .out = VIEW(to, TESSERA_F32, kRequests, kHeads, kDim),
  };
  return tessera_msa_sparse_attention(&args, context);
}

int main(void) {
  const tessera_context reference = {.backend = TESSERA_BACKEND_REFERENCE};
  float worst = 0;
  int i, b;
  fill(q, sizeof q / sizeof *q);
  fill(index_q, sizeof index_q / sizeof *index_q);
  fill(index_k, sizeof index_k / sizeof *index_k);
  fill(index_cache, sizeof index_cache / sizeof *index_cache);
  fill_bf16(k, sizeof k / sizeof *k);
  fill_bf16(v, sizeof v / sizeof *v);
  fill_bf16(k_cache, sizeof k_cache / sizeof *k_cache);
  fill_bf16(v_cache, sizeof v_cache / sizeof *v_cache);
  /* Pages in any order; -1 where a request has none. The new token is the last key of its request. */
  for (i = 0; i < kMaxPages; ++i) {
    page_table[i] = kPages - 1 - i;
    page_table[kMaxPages + i] = i < 5 ? (3 * i) % 16 : -1;
  }
  for (b = 0; b < kRequests; ++b) {
    const int last = lengths[b] - 1;
    slots[b] = page_table[b * kMaxPages + last / kPage] * kPage + last % kPage;
  }

  if (failed(write_caches(NULL)) || failed(select_blocks(NULL)) || failed(attend(out, kDim, NULL))) return 1;
  if (failed(attend(expected, kDim, &reference))) return 1;

  for (i = 0; i < kRequests * kHeads * kDim; ++i) worst = fmaxf(worst, fabsf(out[i] - expected[i]));
  printf("blocks of request 0, KV head 0:");
  for (i = 0; i < kTopk; ++i) printf(" %d", (int)blocks[i]);
  printf("\nlargest difference from the reference: %g\n", (double)worst);
  if (!(worst < 1e-4f)) return 1;

  /* A mistake is found before anything is written, and named. */
  if (attend(out, kDim / 2, NULL) != TESSERA_INVALID_ARGUMENT) return 1;
  printf("as it should be refused: %s\n", tessera_last_error());
  return 0;
}
