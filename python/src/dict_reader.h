#pragma once

// Reads a dict of Python into the fields of a struct.

#include <nanobind/nanobind.h>

#include <string>

#include "medley/base/error.h"

namespace medley {

// Assigns the entries of a dict by name. Throws for an unknown one, which is our mistake.
class DictReader {
 public:
  explicit DictReader(const nanobind::dict& entries) : entries_(entries) {}
  template <typename T>
  void operator()(const char* name, T& value) {
    if (entries_.contains(name)) value = nanobind::cast<T>(entries_[name]);
    known_ += entries_.contains(name);
  }
  void finish(const char* what) const {
    if (known_ != entries_.size())
      throw Error(Blame::kUs, std::string(what) + ": an unknown entry");
  }

 private:
  const nanobind::dict& entries_;
  size_t known_ = 0;
};

}  // namespace medley
