#include "medley/program/symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/calls.h"

namespace medley {
SymbolTable::SymbolTable(std::vector<Part> parts, std::vector<int64_t> mesh)
    : parts_(std::move(parts)), mesh_(std::move(mesh)), names_{"b", "batch", "first_row", "me"} {
  if (mesh_.size() > 1) names_.push_back("me.axis1");
}

int SymbolTable::elsewhere(const RemoteDivision& division) {
  const auto found = std::find(elsewhere_.begin(), elsewhere_.end(), division);
  const auto index = at(found - elsewhere_.begin());
  if (found == elsewhere_.end()) elsewhere_.push_back(division);
  return static_cast<int>(parts_.size() + index);
}

const std::string& SymbolTable::part_name(int part) const {
  const auto p = at(part);
  return p < parts_.size() ? parts_[p].name : elsewhere_[p - parts_.size()].part.name;
}

Size SymbolTable::intern(const Entry& entry, const char* what) {
  const auto [found, added] = known_.try_emplace(entry, static_cast<Symbol>(names_.size()));
  if (added) {
    entries_.push_back(entry);
    std::string name =
        fmt::format("{}.{}.{}", part_name(entry.part), to_string(entry.full, names_), what);
    if (entry.other >= 0) name += "." + part_name(entry.other);
    if (entry.inner >= 0) name += "." + part_name(entry.inner);
    if (entry.kind >= Kind::kLengthWithin)
      name += fmt::format(".within_{}_{}", entry.within.begin, entry.within.end);
    if (entry.device >= 0) name += fmt::format(".{}", entry.device);
    if (entry.axis > 0) name += fmt::format(".axis{}", entry.axis);
    names_.push_back(std::move(name));
  }
  return Size::of(found->second);
}

bool SymbolTable::is_cut(const Placement& placement, size_t axis, int position) const {
  return mesh_.at(axis) > 1 && placement[axis].cuts(position);
}

Size SymbolTable::length(const Placement& placement, int position, const Size& full) {
  Size left = full;
  for (size_t axis = 0; axis < placement.size(); ++axis)
    if (is_cut(placement, axis, position))
      left = intern({.kind = Kind::kLength,
                     .axis = static_cast<int>(axis),
                     .part = placement[axis].part,
                     .full = left},
                    "length");
  return left;
}

// Returns a property of this device's shard over all axes, or nothing if no axis cuts it.
std::optional<Size> SymbolTable::shard(Kind kind,
                                       const Placement& placement,
                                       int position,
                                       const Size& full,
                                       const IndexInterval& within) {
  Entry entry{.kind = kind, .full = full, .within = within};
  for (size_t axis = 0; axis < placement.size(); ++axis) {
    if (!is_cut(placement, axis, position)) continue;
    if (entry.part < 0) {
      entry.part = placement[axis].part;
      entry.axis = static_cast<int>(axis);
    } else {
      entry.inner = placement[axis].part;
    }
  }
  if (entry.part < 0) return std::nullopt;
  switch (kind) {
    case Kind::kLengthWithin:
      return intern(entry, "length");
    case Kind::kBeginWithin:
      return intern(entry, "offset");
    case Kind::kStartWithin:
      return intern(entry, "start");
    default:
      return intern(entry, kind == Kind::kRow ? "row" : "offset");
  }
}

Size SymbolTable::offset(const Placement& placement, int position, const Size& full) {
  return shard(Kind::kOffset, placement, position, full).value_or(Size(0));
}

Size SymbolTable::length_within(const Placement& placement,
                                int position,
                                const Size& full,
                                const IndexInterval& interval) {
  return shard(Kind::kLengthWithin, placement, position, full, interval)
      .value_or(Size(interval.size()));
}

Size SymbolTable::begin_within(const Placement& placement,
                               int position,
                               const Size& full,
                               const IndexInterval& interval) {
  return shard(Kind::kBeginWithin, placement, position, full, interval)
      .value_or(Size(interval.begin));
}

Size SymbolTable::start_within(const Placement& placement,
                               int position,
                               const Size& full,
                               const IndexInterval& interval) {
  return shard(Kind::kStartWithin, placement, position, full, interval)
      .value_or(Size(interval.begin));
}

Size SymbolTable::row(const Placement& placement, int position, const Size& full) {
  return shard(Kind::kRow, placement, position, full).value_or(first_row());
}

Size SymbolTable::length_of(int axis, int part, const Size& full, int device) {
  return intern(
      {.kind = Kind::kLengthOf, .axis = axis, .part = part, .full = full, .device = device}, "of");
}
Size SymbolTable::sent(int axis, const Cut& from, const Cut& to, const Size& whole, int device) {
  return intern(exchanged(Kind::kSent, axis, from, to, whole, device), "sent");
}
Size SymbolTable::received(
    int axis, const Cut& from, const Cut& to, const Size& whole, int device) {
  return intern(exchanged(Kind::kReceived, axis, from, to, whole, device), "received");
}
SymbolTable::Entry SymbolTable::exchanged(
    Kind kind, int axis, const Cut& from, const Cut& to, const Size& whole, int device) {
  return {.kind = kind,
          .axis = axis,
          .part = from.part,
          .full = from.full,
          .device = device,
          .other = to.part,
          .other_full = to.full,
          .whole = whole};
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

std::vector<int64_t> SymbolTable::lengths_of(int axis,
                                             int part,
                                             int64_t full,
                                             const Rows& rows) const {
  const auto p = at(part);
  if (p < parts_.size())
    return part_lengths(parts_[p], full, static_cast<int>(mesh_[at(axis)]), rows.microbatch);
  const RemoteDivision& other = elsewhere_[p - parts_.size()];
  const std::vector<int64_t> outer =
      other.rows.empty() ? part_lengths(other.part, full, other.devices, rows.microbatch)
                         : of_fewer_rows(other.rows.at(rows.number), rows.microbatch.rows).lengths;
  if (other.inner == 1) return outer;
  std::vector<int64_t> all;
  for (int64_t length : outer) {
    const std::vector<int64_t> pieces = part_lengths(Part{}, length, other.inner, rows.microbatch);
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

const SymbolTable::Division& SymbolTable::divide_into(
    int axis, int part, int64_t full, const Rows& rows, Divisions& known) const {
  const auto [found, added] = known.try_emplace({axis, part, full});
  Division& division = found->second;
  if (!added) return division;
  division.lengths = lengths_of(axis, part, full, rows);
  std::exclusive_scan(division.lengths.begin(),
                      division.lengths.end(),
                      std::back_inserter(division.starts),
                      int64_t{0});
  return division;
}

IndexInterval SymbolTable::piece_of(const Division& division, size_t device, int64_t start) {
  const int64_t begin = start + division.starts[device];
  return {begin, begin + division.lengths[device]};
}

// Returns the intersection of an interval with another, within that one's bounds if empty.
IndexInterval SymbolTable::clamped(const IndexInterval& interval, const IndexInterval& bounds) {
  return {std::clamp(interval.begin, bounds.begin, bounds.end),
          std::clamp(interval.end, bounds.begin, bounds.end)};
}

std::vector<int64_t> SymbolTable::values_of(const Rows& rows, int device, Divisions& known) const {
  std::vector<int64_t> values{rows.microbatch.rows, rows.global_batch, rows.first};
  for (int axis = 0; axis < static_cast<int>(mesh_.size()); ++axis)
    values.push_back(along(mesh_, axis).place(device));
  const auto me_on = [&](int axis) { return at(values[kMe + at(axis)]); };
  for (const Entry& entry : entries_) {
    const int64_t full = evaluate(entry.full, values);
    const Division& own = divide_into(entry.axis, entry.part, full, rows, known);
    const bool of_mesh = at(entry.part) >= parts_.size();
    const size_t d = of_mesh ? at(device) : me_on(entry.axis);
    const auto shard = [&] {
      const Division* inner =
          entry.inner < 0 ? nullptr : &divide_into(1, entry.inner, own.lengths[d], rows, known);
      return inner ? piece_of(*inner, me_on(1), own.starts[d]) : piece_of(own, d, 0);
    };
    const auto within = [&] { return clamped(entry.within, shard()); };
    const auto common = [&](size_t i, size_t j) {
      const int64_t other_full = evaluate(entry.other_full, values);
      const int64_t whole = evaluate(entry.whole, values);
      const Division& other = divide_into(entry.axis, entry.other, other_full, rows, known);
      const int64_t unit = full == 0 ? 0 : whole / full;
      const int64_t other_unit = other_full == 0 ? 0 : whole / other_full;
      return std::max<int64_t>(0,
                               std::min((own.starts[i] + own.lengths[i]) * unit,
                                        (other.starts[j] + other.lengths[j]) * other_unit) -
                                   std::max(own.starts[i] * unit, other.starts[j] * other_unit));
    };
    const auto peer = at(std::max(entry.device, 0));
    switch (entry.kind) {
      case Kind::kLength:
        values.push_back(own.lengths[d]);
        break;
      case Kind::kOffset:
        values.push_back(shard().begin);
        break;
      case Kind::kRow:
        values.push_back(rows.first + shard().begin);
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
      case Kind::kLengthWithin:
        values.push_back(within().size());
        break;
      case Kind::kBeginWithin:
        values.push_back(within().begin);
        break;
      case Kind::kStartWithin:
        values.push_back(within().begin - shard().begin);
        break;
    }
  }
  return values;
}

std::vector<int64_t> SymbolTable::table(const Microbatch& microbatch,
                                        size_t number,
                                        int64_t first_row,
                                        int64_t global_batch,
                                        int device) const {
  Divisions known;
  return values_of({microbatch, number, first_row, global_batch}, device, known);
}

std::vector<std::vector<int64_t>> SymbolTable::tables(const Microbatch& microbatch,
                                                      size_t number,
                                                      int64_t first_row,
                                                      int64_t global_batch) const {
  Divisions known;
  std::vector<std::vector<int64_t>> all;
  const int devices = along(mesh_, kWholeMesh).count;
  for (int device = 0; device < devices; ++device)
    all.push_back(values_of({microbatch, number, first_row, global_batch}, device, known));
  return all;
}

}  // namespace medley
