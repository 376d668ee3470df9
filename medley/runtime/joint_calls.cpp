#include "medley/runtime/joint_calls.h"

#include <fmt/format.h>

#include <sstream>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr size_t kMostNames = 64;

}  // namespace

std::string to_text(const JointCall& call) {
  return fmt::format("{} {:d} {}", call.number, call.running, call.name);
}

std::optional<JointCall> parse_joint_call(const std::string& text) {
  std::istringstream in(text);
  JointCall call;
  if (!(in >> call.number >> call.running) || in.get() != ' ') return std::nullopt;
  std::getline(in, call.name);
  return call;
}

void JointCalls::begin(const std::string& name) {
  if (depth_++ > 0) return;
  ++count_;
  names_.push_back(name);
  if (names_.size() > kMostNames) names_.pop_front();
}

void JointCalls::end() {
  MEDLEY_CHECK(depth_ > 0);
  --depth_;
}

JointCall JointCalls::last() const {
  return {count_, depth_ > 0, names_.empty() ? "" : names_.back()};
}

std::optional<std::string> JointCalls::name(int64_t number) const {
  const int64_t first = count_ - static_cast<int64_t>(names_.size()) + 1;
  if (number < first || number > count_) return std::nullopt;
  return names_[at(number - first)];
}

}  // namespace medley
