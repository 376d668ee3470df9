#include "medley/schedule/counts.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// Returns the counts min(B, growth (S - i - 1) + 1).
std::vector<int> growing(int stages, int microbatches, int growth) {
  MEDLEY_CHECK(stages >= 1 && microbatches >= 1);
  std::vector<int> counts;
  for (int behind = stages; behind-- > 0;)
    counts.push_back(std::min(microbatches, growth * behind + 1));
  return counts;
}

}  // namespace

std::vector<int> gpipe(int stages, int microbatches) {
  MEDLEY_CHECK(stages >= 1 && microbatches >= 1);
  return std::vector<int>(at(stages), microbatches);
}

std::vector<int> one_f_one_b(int stages, int microbatches) {
  return growing(stages, microbatches, 1);
}

std::vector<int> eager_one_f_one_b(int stages, int microbatches) {
  return growing(stages, microbatches, 2);
}

}  // namespace medley
