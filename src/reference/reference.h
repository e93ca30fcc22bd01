// The oracle: every operator as its definition, in double precision, one row after the other. It is the backend
// "reference" and what the tests compare the kernels with, so it shares no code with them and is written to be read,
// not to be fast. Arguments have passed the operator's check.
#ifndef TESSERA_REFERENCE_REFERENCE_H_
#define TESSERA_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Fills out and, if given, lse; or, if those are given, state_o, state_l and state_m.
Status reference_block_sparse_gqa_prefill(const tessera_block_sparse_gqa_prefill_args& args);
Status reference_msa_sparse_attention(const tessera_msa_sparse_attention_args& args);
Status reference_block_sparse_attention_single_q(const tessera_block_sparse_attention_single_q_args& args);
Status reference_append_kv(const tessera_append_kv_args& args);
Status reference_cp_merge(const tessera_cp_merge_args& args);
Status reference_merge_states(const tessera_merge_states_args& args);
Status reference_moba_select(const tessera_moba_select_args& args);
Status reference_mass_select(const tessera_mass_select_args& args);
Status reference_msa_block_scores(const tessera_msa_block_scores_args& args);
Status reference_msa_select(const tessera_msa_select_args& args);
Status reference_qsa_compress_keys(const tessera_qsa_compress_keys_args& args);
Status reference_qsa_screen_keys(const tessera_qsa_screen_keys_args& args);
Status reference_qsa_append_keys(const tessera_qsa_append_keys_args& args);
Status reference_qsa_expand_blocks(const tessera_qsa_expand_blocks_args& args);
Status reference_qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args& args);
Status reference_qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args& args);
Status reference_qsa_mqa_decode(const tessera_qsa_mqa_decode_args& args);
Status reference_qsa_select(const tessera_qsa_select_args& args);
Status reference_topk_blocks(const tessera_topk_blocks_args& args);
Status reference_qsa_sparse_attention(const tessera_qsa_sparse_attention_args& args);

// The same results before they are rounded, with the quantities that an error bound is made of. All arrays are dense
// and row-major.
namespace reference {

// Rows and heads as in q: [B, Sq, Hq] or [total_q, Hq]; of the single query block [1, bq, H].
struct Attention {
  std::vector<double> out;     // [..., Dv]
  std::vector<double> spread;  // [..., Dv]: sum_j p_j |v_j|
  std::vector<double> lse;     // [...]
  std::vector<double> l;       // [...]: sum_j exp(s_j - m)
  std::vector<double> m;       // [...]: max_j s_j
  std::vector<double> reach;   // [...]: max_j |scale| sum_d |q_d k_jd|, which the error of a score is relative to
};
Attention attention(const tessera_block_sparse_gqa_prefill_args& args);
Attention attention(const tessera_msa_sparse_attention_args& args);
Attention attention(const tessera_block_sparse_attention_single_q_args& args);
// Before the gate.
Attention qsa_attention(const tessera_qsa_sparse_attention_args& args);

struct Merge {
  std::vector<double> out;     // [..., Dv]
  std::vector<double> spread;  // [..., Dv]: the same average over |partials|
  std::vector<double> lse;     // [...]; only of merge_states
};
Merge cp_merge(const tessera_cp_merge_args& args);
Merge merge_states(const tessera_merge_states_args& args);

// Preference among visible blocks: first by tier, then by score.
enum Tier : int8_t {
  kInvisible = 0,
  kByScore = 1,
  kOwn = 2,     // holds the position of one of the query block's rows
  kForced = 3,  // one of the first init_blocks, or of the local_blocks up to the last row's own
};

// Lists as in the indices: [B, Hkv, nQ], [B, Hi, Sq], [Hi, total_q], ... N: blocks of the request that has the most; of
// QSA those of the row that sees the most.
struct Selection {
  std::vector<int32_t> ids;       // [..., K]
  std::vector<double> score;      // [..., N]; -inf where invisible
  std::vector<double> magnitude;  // [..., N]: what the error of a score is relative to
  std::vector<Tier> tier;         // [..., N]
};
Selection moba_select(const tessera_moba_select_args& args);
Selection mass_select(const tessera_mass_select_args& args);
Selection msa_select(const tessera_msa_select_args& args);
Selection qsa_select(const tessera_qsa_select_args& args);
// The token_indices that belong to these block ids [..., K].
std::vector<int32_t> qsa_token_indices(const tessera_qsa_select_args& args, const std::vector<int32_t>& ids);
Selection topk_blocks(const tessera_topk_blocks_args& args);  // magnitude 0: the scores are given

struct BlockScores {
  std::vector<double> score;      // as the scores
  std::vector<double> magnitude;  // what the error of a score is relative to
};
// Magnitude: the largest sum_d |q_d k_d| of the block's visible keys.
BlockScores msa_block_scores(const tessera_msa_block_scores_args& args);
// Magnitude: scale sum_h |w_h| sum_d |q_hd k_d|.
BlockScores qsa_indexer_mqa_score(const tessera_qsa_indexer_mqa_score_args& args);
BlockScores qsa_mqa_prefill(const tessera_qsa_mqa_prefill_args& args);
BlockScores qsa_mqa_decode(const tessera_qsa_mqa_decode_args& args);

}  // namespace reference
}  // namespace tessera

#endif  // TESSERA_REFERENCE_REFERENCE_H_
