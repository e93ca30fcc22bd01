#include "dist/call.h"

#include <algorithm>
#include <cstring>

#include "api/call.h"
#include "ops/layout.h"

namespace tessera::dist {

tessera_tensor narrow(tessera_tensor t, int axis, int64_t first, int64_t count) {
  if (!given(t)) return t;
  t.data = static_cast<char*>(t.data) + first * t.stride[axis] * dtype_size(t.dtype);
  t.shape[axis] = count;
  return t;
}

std::string describe(std::initializer_list<Named> tensors) {
  std::string text;
  for (const Named& n : tensors) {
    if (given(n.tensor)) text += n.name + (" " + shape_text(n.tensor)) + " " + dtype_name(n.tensor.dtype) + ", ";
  }
  return text;
}

std::vector<Piece> pieces(int64_t first, int64_t end, int64_t units, int64_t size, int64_t rows) {
  std::vector<Piece> all;
  while (first < end) {
    const int64_t b = first / units;
    const int64_t unit = first % units;
    const bool whole = unit == 0 && end - first >= units;
    const int64_t count = whole ? (end - first) / units : 1;
    const int64_t last = whole ? units : std::min(units, unit + end - first);
    const int64_t begin = unit * size;
    all.push_back({b, count, begin, std::min(last * size, rows) - begin});
    first += whole ? count * units : last - unit;
  }
  return all;
}

tessera_tensor batch_of(const tessera_tensor& rows, int64_t first, const Piece& piece, int64_t rows_per_request) {
  if (!given(rows)) return rows;
  const tessera_tensor from = narrow(rows, 0, piece.request * rows_per_request + piece.first - first, 0);
  tessera_tensor t = from;
  t.ndim = rows.ndim + 1;
  t.shape[0] = piece.requests;
  t.stride[0] = rows_per_request * rows.stride[0];
  t.shape[1] = piece.rows;
  t.stride[1] = rows.stride[0];
  std::copy(rows.shape + 1, rows.shape + rows.ndim, t.shape + 2);
  std::copy(rows.stride + 1, rows.stride + rows.ndim, t.stride + 2);
  return t;
}

tessera_sequences PackedPiece::of(const tessera_sequences& s) const {
  const auto requests = static_cast<int64_t>(offsets.size());
  const int64_t count = requests + 1;
  return {tessera_dense(bounds.data(), TESSERA_I32, 1, &count),
          0,
          narrow(s.cu_seqlens_k, 0, request, count),
          narrow(s.page_table, 0, request, requests),
          narrow(s.seqused_k, 0, request, requests),
          tessera_dense(offsets.data(), TESSERA_I32, 1, &requests)};
}

// Broken bounds leave rows between two requests to nobody, which only the first bound of a call can say.
std::vector<PackedPiece> packed_pieces(const std::vector<Sequence>& requests, int64_t first, int64_t end) {
  std::vector<PackedPiece> all;
  int64_t row = first;
  size_t b = 0;
  do {
    PackedPiece piece = {row, row, static_cast<int64_t>(b), {}, {}};
    for (; b < requests.size(); ++b) {
      const Sequence& seq = requests[b];
      const int64_t from = std::clamp(seq.row, first, end);
      if (!piece.bounds.empty() && from > piece.end) break;
      if (piece.bounds.empty()) piece.bounds.push_back(static_cast<int32_t>(from - row));
      piece.end = std::clamp(seq.row + seq.rows, first, end);
      piece.bounds.push_back(static_cast<int32_t>(piece.end - row));
      piece.offsets.push_back(static_cast<int32_t>(seq.offset + from - seq.row));
    }
    if (piece.bounds.empty()) piece.bounds.push_back(0);
    if (b == requests.size()) piece.end = end;
    row = piece.end;
    all.push_back(std::move(piece));
  } while (b < requests.size());
  return all;
}

Status reported(tessera_status code) {
  if (code == TESSERA_OK) return {};
  const char* const message = last_error_message();
  const char* const text = std::strstr(message, ": ");
  return {code, text == nullptr ? message : text + 2};
}

}  // namespace tessera::dist
