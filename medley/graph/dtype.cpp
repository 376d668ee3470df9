#include "medley/graph/dtype.h"

#include <array>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

struct Row {
  std::string_view name;
  int64_t bytes;
  bool floating;
};
constexpr std::array<Row, 10> kRows{{{"f64", 8, true},
                                     {"f32", 4, true},
                                     {"f16", 2, true},
                                     {"bf16", 2, true},
                                     {"i64", 8, false},
                                     {"i32", 4, false},
                                     {"i16", 2, false},
                                     {"i8", 1, false},
                                     {"u8", 1, false},
                                     {"bool", 1, false}}};

const Row& row(DType dtype) {
  const auto index = at(dtype);
  MEDLEY_CHECK(index < kRows.size());
  return kRows[index];
}

}  // namespace

std::string_view to_string(DType dtype) { return row(dtype).name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == text) return static_cast<DType>(i);
  return std::nullopt;
}

int64_t bytes_per_element(DType dtype) { return row(dtype).bytes; }

bool is_floating(DType dtype) { return row(dtype).floating; }

}  // namespace medley
