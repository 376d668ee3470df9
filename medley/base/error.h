#pragma once

#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace medley {

// The party that has to act: our caller (bad input), the operator of the machines (disk full, peer
// lost), or the authors of Medley (a bug).
enum class Blame { kCaller, kEnvironment, kUs };

// The one exception type of the project. The message begins with the place and ends with the bad
// value and its unit: "cluster.yaml: networks[3].bandwidth: must be positive: -3".
class Error : public std::runtime_error {
 public:
  Error(Blame blame, const std::string& message) : std::runtime_error(message), blame_(blame) {}
  Blame blame() const { return blame_; }

 private:
  Blame blame_;
};

// Throws Error(kUs). Only the macros below call it.
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <typename T>
std::string value_text(const T& value) {
  if constexpr (requires(std::ostream & out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "(unprintable)";
  }
}

template <typename A, typename B>
void check_eq(const A& a, const B& b, const char* file, int line, const char* what) {
  if (!(a == b)) check_failed(file, line, what + (": " + value_text(a) + " vs " + value_text(b)));
}

}  // namespace medley

// Checks invariants, also in release builds. Throws Error(Blame::kUs).
#define MEDLEY_CHECK(condition)                                               \
  do {                                                                        \
    if (!(condition)) ::medley::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

#define MEDLEY_CHECK_EQ(a, b) ::medley::check_eq((a), (b), __FILE__, __LINE__, #a " == " #b)
