#include "medley/schedule/one_f_one_b.h"

#include <algorithm>

#include "medley/base/error.h"

namespace medley {

std::vector<int> one_f_one_b(int stages, int microbatches) {
  MEDLEY_CHECK(stages >= 1 && microbatches >= 1);
  std::vector<int> counts;
  for (int i = 0; i < stages; ++i) counts.push_back(std::min(microbatches, stages - i));
  return counts;
}

}  // namespace medley
