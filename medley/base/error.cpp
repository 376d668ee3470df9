#include "medley/base/error.h"

#include <fmt/format.h>

#include <string_view>

namespace medley {

void check_failed(const char* file, int line, const std::string& what) {
  std::string_view path = file;
  if (auto start = path.rfind("medley/"); start != std::string_view::npos)
    path.remove_prefix(start);
  throw Error(Blame::kUs, fmt::format("{}:{}: check failed: {}", path, line, what));
}

}  // namespace medley
