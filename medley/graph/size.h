#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace medley {

// A named integer that is unknown when the graph is written: the batch, or the length of a shard.
// It is an index into the `symbols` of its graph.
using Symbol = int32_t;

// A size: a coefficient times a product of symbols, such as 128*b. Sums do not occur in the shapes
// of a training graph with a symbolic batch. Knows nothing of the names of its symbols.
struct Size {
  int64_t coefficient = 0;
  // Sorted; a symbol may occur twice (the rows of an in-batch contrastive loss).
  std::vector<Symbol> symbols;

  Size() = default;
  // Sizes are mostly numbers.  NOLINTNEXTLINE(google-explicit-constructor)
  Size(int64_t value) : coefficient(value) {}
  static Size of(Symbol symbol) {
    Size size(1);
    size.symbols.push_back(symbol);
    return size;
  }
  bool is_constant() const { return symbols.empty(); }
  bool operator==(const Size&) const = default;
  auto operator<=>(const Size&) const = default;
};

// Throws Error(kCaller) on overflow.
int64_t multiply(int64_t a, int64_t b);
Size operator*(const Size& a, const Size& b);
// Returns a / b if b divides a exactly for all values of the symbols, else nullopt.
std::optional<Size> divide(const Size& a, const Size& b);
// Returns the size with symbol i equal to values[i].
int64_t evaluate(const Size& size, const std::vector<int64_t>& values);
std::vector<int64_t> evaluate_all(const std::vector<Size>& sizes,
                                  const std::vector<int64_t>& values);
// Returns the text form: "b*128", "128", "b*b*2" (symbols by name, then the coefficient unless it
// is 1).
std::string to_string(const Size& size, const std::vector<std::string>& names);

}  // namespace medley
