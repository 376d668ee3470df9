#include "medley/program/symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "medley/base/error.h"
#include "medley/program/complete.h"

namespace medley {
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

const SymbolTable::Division& SymbolTable::divide_into(int part,
                                                      int64_t full,
                                                      const Microbatch& microbatch,
                                                      Divisions& known) const {
  const auto [found, added] = known.try_emplace({part, full});
  Division& division = found->second;
  if (!added) return division;
  division.lengths = part_lengths(parts_[static_cast<size_t>(part)], full, devices_, microbatch);
  std::exclusive_scan(division.lengths.begin(),
                      division.lengths.end(),
                      std::back_inserter(division.starts),
                      int64_t{0});
  return division;
}

std::vector<int64_t> SymbolTable::values_of(const Microbatch& microbatch,
                                            int64_t first_row,
                                            int64_t global_batch,
                                            int device,
                                            Divisions& known) const {
  std::vector<int64_t> values{microbatch.rows, global_batch, first_row, device};
  const auto d = static_cast<size_t>(device);
  for (const Entry& entry : entries_) {
    const int64_t full = evaluate(entry.full, values);
    const Division& own = divide_into(entry.part, full, microbatch, known);
    const auto common = [&](size_t i, size_t j) {
      const Division& other = divide_into(entry.other, full, microbatch, known);
      return std::max<int64_t>(
          0,
          std::min(own.starts[i] + own.lengths[i], other.starts[j] + other.lengths[j]) -
              std::max(own.starts[i], other.starts[j]));
    };
    const auto peer = static_cast<size_t>(std::max(entry.device, 0));
    switch (entry.kind) {
      case Kind::kLength:
        values.push_back(own.lengths[d]);
        break;
      case Kind::kOffset:
        values.push_back(own.starts[d]);
        break;
      case Kind::kRow:
        values.push_back(first_row + own.starts[d]);
        break;
      case Kind::kLengthOf:
        values.push_back(own.lengths[peer]);
        break;
      case Kind::kSent:
        values.push_back(common(d, peer));
        break;
      case Kind::kReceived:
        values.push_back(common(peer, d));
        break;
    }
  }
  return values;
}

std::vector<int64_t> SymbolTable::table(const Microbatch& microbatch,
                                        int64_t first_row,
                                        int64_t global_batch,
                                        int device) const {
  Divisions known;
  return values_of(microbatch, first_row, global_batch, device, known);
}

std::vector<std::vector<int64_t>> SymbolTable::tables(const Microbatch& microbatch,
                                                      int64_t first_row,
                                                      int64_t global_batch) const {
  Divisions known;
  std::vector<std::vector<int64_t>> all;
  for (int device = 0; device < devices_; ++device)
    all.push_back(values_of(microbatch, first_row, global_batch, device, known));
  return all;
}

}  // namespace medley
