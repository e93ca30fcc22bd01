// A call of an attention operator that can be done in pieces, by rows. Rows of all requests are counted in one line, and
// a unit is the least number of rows that can be cut off: those that share a list.
#ifndef TESSERA_DIST_CALL_H_
#define TESSERA_DIST_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/sequences.h"
#include "dist/partition.h"
#include "dist/ranks.h"
#include "tessera/parallel.h"

namespace tessera::dist {

// Entries [first, first + count) of an axis. What is not given stays so.
tessera_tensor narrow(tessera_tensor t, int axis, int64_t first, int64_t count);
// "q [1, 64, 8, 64] float32, " of all that are given.
struct Named {
  const char* name;
  const tessera_tensor& tensor;
};
std::string describe(std::initializer_list<Named> tensors);

class Call {
 public:
  virtual ~Call() = default;

  // Everything that can be wrong with the arguments. Fills the rest.
  virtual Status check() = 0;
  // Of unit `unit`; in keys times rows times KV heads.
  virtual int64_t work(int64_t unit) const = 0;
  virtual int64_t first_row(int64_t unit) const = 0;  // for `units`: the number of rows
  // Units [first, end), all heads, into out [rows, Hq, Dv] and lse [rows, Hq].
  virtual Status run(int64_t first, int64_t end, const tessera_tensor& out, const tessera_tensor& lse,
                     const tessera_context& context) const = 0;

  int64_t units = 0;
  tessera_tensor out = {}, lse = {};  // as given: [B, Sq, Hq, Dv] or [R, Hq, Dv]
  Word word;                          // what all ranks must have in common
  bool paged = false;                 // by a table, as context-parallel calls must be
};

std::unique_ptr<Call> call_of(const tessera_block_sparse_gqa_prefill_args& args);
std::unique_ptr<Call> call_of(const tessera_msa_sparse_attention_args& args);
std::unique_ptr<Call> call_of(const tessera_qsa_sparse_attention_args& args);

// ---- Pieces of rows, for the calls ----

// Of a batch [B, n, ...]: rows [first, first + rows) of each of the requests [request, request + requests).
struct Piece {
  int64_t request, requests, first, rows;
};
// The fewest that make up units [first, end), of which each request has `units`, of `size` rows but for the last.
std::vector<Piece> pieces(int64_t first, int64_t end, int64_t units, int64_t size, int64_t rows);

// Rows [first, ...) of an [R, ...] output as those of a piece, [requests, rows, ...].
tessera_tensor batch_of(const tessera_tensor& rows, int64_t first, const Piece& piece, int64_t rows_per_request);

// Of packed rows: rows [row, end), with those of requests [request, request + offsets.size()) where `bounds` says, from `row`
// on, and the position of each request's first row.
struct PackedPiece {
  int64_t row, end, request;
  std::vector<int32_t> bounds, offsets;

  // Refers to the vectors.
  tessera_sequences of(const tessera_sequences& s) const;
};
// Those that make up rows [first, end).
std::vector<PackedPiece> packed_pieces(const std::vector<Sequence>& requests, int64_t first, int64_t end);

// What an operator that is called for a piece has reported.
Status reported(tessera_status code);

}  // namespace tessera::dist

#endif  // TESSERA_DIST_CALL_H_
