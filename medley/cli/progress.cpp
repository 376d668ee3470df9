#include "medley/cli/progress.h"

#include <fmt/format.h>

namespace medley {
namespace {

constexpr Nanoseconds kPatience{2'000'000'000};
constexpr const char* kEraseLine = "\r\x1b[K";

}  // namespace

Progress::Progress(std::ostream* terminal, Clock& clock)
    : terminal_(terminal), clock_(clock), start_(clock.now()) {}

Progress::~Progress() {
  if (written_) *terminal_ << kEraseLine << std::flush;
}

void Progress::at(std::string_view what, size_t number, size_t of) {
  if (!terminal_ || clock_.now() - start_ < kPatience) return;
  *terminal_ << kEraseLine << fmt::format("{}: {} of {}", what, number, of) << std::flush;
  written_ = true;
}

}  // namespace medley
