// Query rows of several requests, in every form that QSA's calls take them in, and tensors laid out as a case wants them.
#ifndef TESSERA_TESTS_QSA_ROWS_H_
#define TESSERA_TESTS_QSA_ROWS_H_

#include <algorithm>
#include <climits>
#include <vector>

#include "../cases/block_attn.h"
#include "tensors.h"

namespace tessera::test {

enum class Rows {
  kBatch,
  kPacked,  // one request after the other, with cu_seqlens_q
  kMapped,  // of all requests in turn, with token_to_req; every seventh row is no request's
  kBoth,    // as kPacked, with both tensors
  kLone,    // packed rows of the only request, with neither
};

enum class Positions {
  kInferred,
  kLast,       // the request's last row sees all of its keys
  kScattered,  // anything, from INT_MIN to INT_MAX
};

// A float tensor of normal numbers, or an int32 one of the given values, laid out as the case wants it.
inline TestTensor laid_out(tessera_dtype dtype, const Shape& shape, cases::Layout layout, int64_t last,
                           size_t broadcast_axis = 0) {
  const bool broadcast = layout == cases::Layout::kBroadcast && shape[broadcast_axis] > 1;
  return {dtype, shape,
          layout == cases::Layout::kStrided ? gappy_strides(shape, last)
          : broadcast                       ? broadcast_strides(shape, broadcast_axis)
                                            : dense_strides(shape)};
}

// Which rows there are, whose they are, and the tensors that say so.
struct QsaRows {
  bool gaps;                        // in the int32 tensors
  std::vector<int64_t> request_of;  // of each row; -1: none
  std::vector<int64_t> index_of;    // of each row within its request
  TestTensor cu_q, to_request;

  // Of each request `queries` rows, or of packed ones those of rows_of.
  QsaRows(Rows form, int64_t requests, int64_t queries, const std::vector<int64_t>& rows_of, cases::Layout layout)
      : gaps(layout == cases::Layout::kStrided) {
    const auto count = [&](int64_t b) {
      return rows_of.empty() || form == Rows::kBatch ? queries : rows_of[static_cast<size_t>(b)];
    };
    if (form == Rows::kMapped) {
      place_in_turn(requests, queries, count);
    } else {
      for (int64_t b = 0; b < requests; ++b) {
        for (int64_t i = 0; i < count(b); ++i) add(b, i);
      }
    }
    if (form == Rows::kPacked || form == Rows::kBoth) {
      cu_q = ints({requests + 1}, [&](int64_t b) {
        return std::count_if(request_of.begin(), request_of.end(), [b](int64_t of) { return of < b; });
      });
    }
    if (form == Rows::kMapped || form == Rows::kBoth) {
      const int64_t none[] = {-1, INT_MIN, INT_MAX, requests};
      to_request = ints({rows()}, [&](int64_t t) {
        const int64_t b = request_of[static_cast<size_t>(t)];
        return b < 0 ? none[t % 4] : b;
      });
    }
  }

  int64_t rows() const { return static_cast<int64_t>(request_of.size()); }
  int64_t rows_of_request(int64_t b) const { return std::count(request_of.begin(), request_of.end(), b); }
  // A seq_lens_q that leaves out rows of some requests.
  TestTensor some_rows(int64_t requests, int64_t queries) const {
    const int64_t counts[] = {queries / 2, 0, queries, -1, INT_MAX};
    return ints({requests}, [&](int64_t b) { return counts[b % 5]; });
  }
  // An int32 tensor in this call's layout, element i being value(i).
  template <class Value>
  TestTensor ints(const Shape& of, const Value& value) const {
    TestTensor t(TESSERA_I32, of, gaps ? gappy_strides(of, 3) : dense_strides(of));
    for (int64_t i = 0; i < t.elements(); ++i) t.set(i, static_cast<double>(value(i)));
    return t;
  }

 private:
  void add(int64_t b, int64_t index) {
    request_of.push_back(b);
    index_of.push_back(index);
  }
  template <class Count>
  void place_in_turn(int64_t requests, int64_t queries, const Count& count) {
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t b = 0; b < requests; ++b) {
        if (i < count(b)) add(b, i);
        if (request_of.size() % 7 == 3) add(-1, 0);
      }
    }
  }
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_QSA_ROWS_H_
