#include "medley/program/symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/base/error.h"
#include "medley/program/complete.h"

namespace medley {
namespace {

int64_t start_of(const std::vector<int64_t>& lengths, int device) {
  return std::accumulate(lengths.begin(), lengths.begin() + device, int64_t{0});
}

int64_t overlap(const std::vector<int64_t>& a, int i, const std::vector<int64_t>& b, int j) {
  const int64_t first = std::max(start_of(a, i), start_of(b, j));
  const int64_t last = std::min(start_of(a, i) + a[static_cast<size_t>(i)],
                                start_of(b, j) + b[static_cast<size_t>(j)]);
  return std::max<int64_t>(0, last - first);
}

}  // namespace

SymbolTable::SymbolTable(std::vector<Part> parts, int devices)
    : parts_(std::move(parts)), devices_(devices), names_{"b", "batch", "first_row", "me"} {}

Size SymbolTable::intern(const Entry& entry, const char* what) {
  const auto [found, added] = known_.try_emplace(entry, static_cast<Symbol>(names_.size()));
  if (added) {
    entries_.push_back(entry);
    std::string name = fmt::format("{}.{}.{}",
                                   parts_[static_cast<size_t>(entry.part)].name,
                                   to_string(entry.full, {"b"}),
                                   what);
    if (entry.other >= 0) name += "." + parts_[static_cast<size_t>(entry.other)].name;
    if (entry.device >= 0) name += fmt::format(".{}", entry.device);
    names_.push_back(std::move(name));
  }
  return Size::of(found->second);
}

Size SymbolTable::length(int part, const Size& full) {
  return intern({Kind::kLength, part, -1, full, -1}, "length");
}
Size SymbolTable::offset(int part, const Size& full) {
  return intern({Kind::kOffset, part, -1, full, -1}, "offset");
}
Size SymbolTable::row(int part, const Size& full) {
  return intern({Kind::kRow, part, -1, full, -1}, "row");
}
Size SymbolTable::length_of(int part, const Size& full, int device) {
  return intern({Kind::kLengthOf, part, -1, full, device}, "of");
}
Size SymbolTable::sent(int from, int to, const Size& full, int device) {
  return intern({Kind::kSent, from, to, full, device}, "sent");
}
Size SymbolTable::received(int from, int to, const Size& full, int device) {
  return intern({Kind::kReceived, from, to, full, device}, "received");
}

std::vector<std::pair<Symbol, Size>> SymbolTable::lengths_under(int part) const {
  std::vector<std::pair<Symbol, Size>> lengths;
  for (const auto& [entry, symbol] : known_)
    if (entry.kind == Kind::kLength && entry.part == part) lengths.emplace_back(symbol, entry.full);
  return lengths;
}

void SymbolTable::set_parts(std::vector<Part> parts) {
  MEDLEY_CHECK_EQ(parts.size(), parts_.size());
  parts_ = std::move(parts);
}

std::vector<int64_t> SymbolTable::table(const Microbatch& microbatch,
                                        int64_t first_row,
                                        int64_t global_batch,
                                        int device) const {
  std::vector<int64_t> values{microbatch.rows, global_batch, first_row, device};
  for (const Entry& entry : entries_) {
    const int64_t full = evaluate(entry.full, values);
    const auto lengths = [&](int part) {
      return part_lengths(parts_[static_cast<size_t>(part)], full, devices_, microbatch);
    };
    const std::vector<int64_t> own = lengths(entry.part);
    switch (entry.kind) {
      case Kind::kLength:
        values.push_back(own[static_cast<size_t>(device)]);
        break;
      case Kind::kOffset:
        values.push_back(start_of(own, device));
        break;
      case Kind::kRow:
        values.push_back(first_row + start_of(own, device));
        break;
      case Kind::kLengthOf:
        values.push_back(own[static_cast<size_t>(entry.device)]);
        break;
      case Kind::kSent:
        values.push_back(overlap(own, device, lengths(entry.other), entry.device));
        break;
      case Kind::kReceived:
        values.push_back(overlap(own, entry.device, lengths(entry.other), device));
        break;
    }
  }
  return values;
}

}  // namespace medley
