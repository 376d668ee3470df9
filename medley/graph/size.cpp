#include "medley/graph/size.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

int64_t multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw Error(Blame::kCaller, fmt::format("a size does not fit 64 bits: {} * {}", a, b));
  return product;
}

Size operator*(const Size& a, const Size& b) {
  Size product(multiply(a.coefficient, b.coefficient));
  if (product.coefficient == 0) return product;
  product.symbols.resize(a.symbols.size() + b.symbols.size());
  std::merge(a.symbols.begin(),
             a.symbols.end(),
             b.symbols.begin(),
             b.symbols.end(),
             product.symbols.begin());
  return product;
}

std::optional<Size> divide(const Size& a, const Size& b) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  if (b.coefficient == 0 || (a.coefficient == kMin && b.coefficient == -1)) return std::nullopt;
  if (a.coefficient % b.coefficient != 0) return std::nullopt;
  Size quotient(a.coefficient / b.coefficient);
  if (quotient.coefficient == 0) return quotient;
  if (!std::includes(a.symbols.begin(), a.symbols.end(), b.symbols.begin(), b.symbols.end()))
    return std::nullopt;
  std::set_difference(a.symbols.begin(),
                      a.symbols.end(),
                      b.symbols.begin(),
                      b.symbols.end(),
                      std::back_inserter(quotient.symbols));
  return quotient;
}

int64_t evaluate(const Size& size, const std::vector<int64_t>& values) {
  int64_t result = size.coefficient;
  for (Symbol symbol : size.symbols) {
    MEDLEY_CHECK(symbol >= 0 && at(symbol) < values.size());
    result = multiply(result, values[at(symbol)]);
  }
  return result;
}

std::vector<int64_t> evaluate_all(const std::vector<Size>& sizes,
                                  const std::vector<int64_t>& values) {
  std::vector<int64_t> numbers;
  for (const Size& size : sizes) numbers.push_back(evaluate(size, values));
  return numbers;
}

std::string to_string(const Size& size, const std::vector<std::string>& names) {
  std::string text;
  for (Symbol symbol : size.symbols) {
    MEDLEY_CHECK(symbol >= 0 && at(symbol) < names.size());
    if (!text.empty()) text += '*';
    text += names[at(symbol)];
  }
  if (text.empty()) return std::to_string(size.coefficient);
  if (size.coefficient != 1) text += '*' + std::to_string(size.coefficient);
  return text;
}

}  // namespace medley
