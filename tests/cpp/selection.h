// A selection against the oracle's: exact, but for blocks whose score is too near the score at the cut to tell.
#ifndef TESSERA_TESTS_SELECTION_H_
#define TESSERA_TESTS_SELECTION_H_

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "bounds.h"
#include "reference/reference.h"
#include "tensors.h"

namespace tessera::test {

inline constexpr double kScoreError = 1e-4;  // of a score, relative to the oracle's magnitude

// Within the bound of a score; infinities and NaN exactly.
inline testing::AssertionResult scores_within(const TestTensor& scores, const reference::BlockScores& want) {
  Worst worst;
  const std::vector<double> got = scores.values().values();
  for (size_t i = 0; i < got.size(); ++i) {
    worst.add(static_cast<int64_t>(i), got[i], want.score[i], kScoreError * want.magnitude[i]);
  }
  return worst.within("scores");
}

inline std::vector<int32_t> ids_of(const TestTensor& t) {
  const std::vector<double> values = t.values().values();
  return {values.begin(), values.end()};
}

inline std::string id_text(const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) text += " " + std::to_string(id);
  return text;
}

// Ascending ids of `blocks` blocks, packed to the left, then -1.
inline bool well_formed(const std::vector<int32_t>& ids, int64_t blocks) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == -1) continue;
    if (ids[i] < 0 || ids[i] >= blocks) return false;
    if (i > 0 && ids[i] <= ids[i - 1]) return false;
    if (i > 0 && ids[i - 1] == -1) return false;
  }
  return true;
}

// One list of the oracle: tiers, scores and their magnitudes of `blocks` blocks.
struct WantedList {
  const reference::Tier* tier;
  const double* score;
  const double* magnitude;
  int64_t blocks;

  // The least preferred of the blocks taken.
  int32_t cut(const std::vector<int32_t>& taken) const {
    int32_t least = -1;
    for (int32_t id : taken) {
      if (id == -1) continue;
      if (least == -1 || tier[id] < tier[least] || (tier[id] == tier[least] && !(score[id] > score[least]))) least = id;
    }
    return least;
  }
  bool too_close(int32_t a, int32_t b) const {
    return tier[a] == tier[b] && std::fabs(score[a] - score[b]) <= kScoreError * (magnitude[a] + magnitude[b]);
  }
  testing::AssertionResult matches(const std::vector<int32_t>& got, const std::vector<int32_t>& want) const {
    const auto failure = [&] {
      return testing::AssertionFailure() << "got" << id_text(got) << ", want" << id_text(want);
    };
    if (!well_formed(got, blocks)) return failure() << ": not ascending ids, then -1";
    std::vector<int> surplus(static_cast<size_t>(blocks));
    for (int32_t id : got) {
      if (id != -1) ++surplus[static_cast<size_t>(id)];
    }
    for (int32_t id : want) {
      if (id != -1) --surplus[static_cast<size_t>(id)];
    }
    int total = 0;
    for (int32_t id = 0; id < blocks; ++id) {
      total += surplus[static_cast<size_t>(id)];
      if (surplus[static_cast<size_t>(id)] != 0 && !too_close(id, cut(want))) return failure() << ": block " << id;
    }
    return total == 0 ? testing::AssertionSuccess() : failure() << ": the number of blocks differs";
  }
};

inline testing::AssertionResult selection_within(const TestTensor& indices, const reference::Selection& want) {
  const int64_t topk = indices.values().last_size();
  const int64_t lists = topk == 0 ? 0 : indices.elements() / topk;
  for (int64_t list = 0; list < lists; ++list) {
    std::vector<int32_t> got, wanted;
    for (int64_t i = list * topk; i < (list + 1) * topk; ++i) {
      got.push_back(static_cast<int32_t>(indices.get(i)));
      wanted.push_back(want.ids[static_cast<size_t>(i)]);
    }
    const int64_t blocks = static_cast<int64_t>(want.score.size()) / lists;
    const WantedList of = {want.tier.data() + list * blocks, want.score.data() + list * blocks,
                           want.magnitude.data() + list * blocks, blocks};
    const auto matches = of.matches(got, wanted);
    if (!matches) return testing::AssertionFailure() << "list " << list << ": " << matches.message();
  }
  return testing::AssertionSuccess();
}

}  // namespace tessera::test

#endif  // TESSERA_TESTS_SELECTION_H_
