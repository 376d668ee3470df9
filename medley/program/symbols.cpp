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

int SymbolTable::elsewhere(const Elsewhere& division) {
  const auto found = std::find(elsewhere_.begin(), elsewhere_.end(), division);
  const auto index = static_cast<size_t>(found - elsewhere_.begin());
  if (found == elsewhere_.end()) elsewhere_.push_back(division);
  return static_cast<int>(parts_.size() + index);
}

const std::string& SymbolTable::part_name(int part) const {
  const auto p = static_cast<size_t>(part);
  return p < parts_.size() ? parts_[p].name : elsewhere_[p - parts_.size()].part.name;
}

Size SymbolTable::intern(const Entry& entry, const char* what) {
  const auto [found, added] = known_.try_emplace(entry, static_cast<Symbol>(names_.size()));
  if (added) {
    entries_.push_back(entry);
    std::string name =
        fmt::format("{}.{}.{}", part_name(entry.part), to_string(entry.full, {"b"}), what);
    if (entry.other >= 0) name += "." + part_name(entry.other);
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
Size SymbolTable::sent(const Cut& from, const Cut& to, const Size& whole, int device) {
  return intern({Kind::kSent, from.part, to.part, from.full, device, to.full, whole}, "sent");
}
Size SymbolTable::received(const Cut& from, const Cut& to, const Size& whole, int device) {
  return intern({Kind::kReceived, from.part, to.part, from.full, device, to.full, whole},
                "received");
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

std::vector<int64_t> SymbolTable::lengths_of(int part, int64_t full, const Rows& rows) const {
  const auto p = static_cast<size_t>(part);
  if (p < parts_.size()) return part_lengths(parts_[p], full, devices_, rows.microbatch);
  const Elsewhere& other = elsewhere_[p - parts_.size()];
  if (!other.rows.empty()) return other.rows.at(rows.first);
  return part_lengths(other.part, full, other.devices, rows.microbatch);
}

const SymbolTable::Division& SymbolTable::divide_into(int part,
                                                      int64_t full,
                                                      const Rows& rows,
                                                      Divisions& known) const {
  const auto [found, added] = known.try_emplace({part, full});
  Division& division = found->second;
  if (!added) return division;
  division.lengths = lengths_of(part, full, rows);
  std::exclusive_scan(division.lengths.begin(),
                      division.lengths.end(),
                      std::back_inserter(division.starts),
                      int64_t{0});
  return division;
}

std::vector<int64_t> SymbolTable::values_of(const Rows& rows, int device, Divisions& known) const {
  std::vector<int64_t> values{rows.microbatch.rows, rows.global_batch, rows.first, device};
  const auto d = static_cast<size_t>(device);
  for (const Entry& entry : entries_) {
    const int64_t full = evaluate(entry.full, values);
    const Division& own = divide_into(entry.part, full, rows, known);
    const auto common = [&](size_t i, size_t j) {
      const int64_t other_full = evaluate(entry.other_full, values);
      const int64_t whole = evaluate(entry.whole, values);
      const Division& other = divide_into(entry.other, other_full, rows, known);
      const int64_t unit = full == 0 ? 0 : whole / full;
      const int64_t other_unit = other_full == 0 ? 0 : whole / other_full;
      return std::max<int64_t>(0,
                               std::min((own.starts[i] + own.lengths[i]) * unit,
                                        (other.starts[j] + other.lengths[j]) * other_unit) -
                                   std::max(own.starts[i] * unit, other.starts[j] * other_unit));
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
        values.push_back(rows.first + own.starts[d]);
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
  return values_of({microbatch, first_row, global_batch}, device, known);
}

std::vector<std::vector<int64_t>> SymbolTable::tables(const Microbatch& microbatch,
                                                      int64_t first_row,
                                                      int64_t global_batch) const {
  Divisions known;
  std::vector<std::vector<int64_t>> all;
  for (int device = 0; device < devices_; ++device)
    all.push_back(values_of({microbatch, first_row, global_batch}, device, known));
  return all;
}

}  // namespace medley
