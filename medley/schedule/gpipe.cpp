#include "medley/schedule/gpipe.h"

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

std::vector<int> gpipe(int stages, int microbatches) {
  MEDLEY_CHECK(stages >= 1 && microbatches >= 1);
  return std::vector<int>(at(stages), microbatches);
}

}  // namespace medley
