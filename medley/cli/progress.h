#pragma once

// A progress line on a terminal, shown after two seconds and cleared at the end.

#include <ostream>
#include <string_view>

#include "medley/base/clock.h"

namespace medley {

class Progress {
 public:
  // `terminal` may be null: then nothing is written. Both outlive this.
  Progress(std::ostream* terminal, Clock& clock);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows "pricing the next best: 3 of 20".
  void at(std::string_view what, size_t number, size_t of);

 private:
  std::ostream* const terminal_;
  Clock& clock_;
  const Nanoseconds start_;
  bool written_ = false;
};

}  // namespace medley
