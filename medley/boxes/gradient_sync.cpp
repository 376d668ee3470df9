#include "medley/boxes/gradient_sync.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/boxes/cells.h"

namespace medley {
namespace {

using Ends = std::vector<SyncEnd> SyncCell::*;

int64_t elements(const SyncTensor& tensor, int member, Ends ends) {
  int64_t count = 0;
  for (const SyncCell& cell : tensor)
    for (const SyncEnd& end : cell.*ends)
      if (end.member == member) count += cell.length;
  return count;
}

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw Error(Blame::kUs, fmt::format("{}: {}", place, what));
}

// Checks that the members of a cell ascend and have all of it.
void verify_ends(const std::vector<SyncEnd>& ends,
                 int64_t length,
                 size_t num_members,
                 const std::string& place) {
  if (ends.empty()) refuse(place, "found nobody, expected a member at least");
  int before = -1;
  for (const SyncEnd& end : ends) {
    if (end.member <= before || at(end.member) >= num_members)
      refuse(place,
             fmt::format("found member {} after {}, expected rising ones below {}",
                         end.member,
                         before,
                         num_members));
    before = end.member;
    if (end.runs.total() != length)
      refuse(
          place,
          fmt::format(
              "found {} elements of member {}, expected {}", end.runs.total(), end.member, length));
  }
}

// Checks that each member's parts of the cells are adjacent in its tensor, each element once.
void verify_cover(const SyncTensor& tensor, Ends ends, const std::string& place) {
  std::map<int, std::vector<IndexInterval>> runs;  // [member]
  for (const SyncCell& cell : tensor)
    for (const SyncEnd& end : cell.*ends)
      for (int64_t run = 0; run < end.runs.count(); ++run) {
        const int64_t start = end.runs.start_of(run);
        runs[end.member].push_back({start, start + end.runs.length});
      }
  for (auto& [member, all] : runs) {
    std::ranges::sort(all);
    int64_t next = 0;
    for (const IndexInterval& run : all) {
      if (run.begin != next)
        refuse(place,
               fmt::format("found element {} of member {} {}, expected each once",
                           std::min(run.begin, next),
                           member,
                           run.begin < next ? "twice" : "in no cell"));
      next = run.end;
    }
  }
}

// Checks that each member of a cell puts the tensor in, or gets it out.
void verify_members(const GradientSync& sync, size_t tensor, const std::string& place) {
  const auto expect = [&](int member, const std::vector<int>& tensors, const char* what) {
    if (!std::ranges::binary_search(tensors, static_cast<int>(tensor)))
      refuse(
          place,
          fmt::format("found member {} in a cell of tensor {}, which it {}", member, tensor, what));
  };
  for (const SyncCell& cell : *sync.tensors[tensor]) {
    for (const SyncEnd& end : cell.from)
      expect(end.member, sync.members.at(at(end.member)).inputs, "does not put in");
    for (const SyncEnd& end : cell.to)
      expect(end.member, sync.members.at(at(end.member)).outputs, "does not get out");
  }
}

// Returns the place in `to` of the member that keeps the cell: its only giver, which takes it too.
std::optional<size_t> keeper_of(const SyncCell& cell) {
  if (cell.from.size() > 1) return std::nullopt;
  const int giver = cell.from[0].member;
  const auto kept = std::ranges::lower_bound(cell.to, giver, {}, &SyncEnd::member);
  if (kept == cell.to.end() || kept->member != giver) return std::nullopt;
  return at(kept - cell.to.begin());
}

}  // namespace

SyncTensor sync_tensor(const std::vector<SyncHolder>& holders) {
  std::vector<Layout> layouts;
  std::vector<std::string> names;
  std::vector<std::vector<std::vector<int>>> devices;  // [holder][box]
  for (const SyncHolder& holder : holders) {
    layouts.push_back(holder.layout);
    names.push_back(holder.name);
    devices.push_back(devices_of(holder.layout));
  }
  const Cells cells = cells_of(layouts, names);
  SyncTensor tensor;
  for (const Cell& cell : cells.cells) {
    SyncCell& result = tensor.emplace_back();
    result.length = volume(cell.box);
    for (size_t h = 0; h < holders.size(); ++h) {
      const SyncHolder& holder = holders[h];
      if (cell.boxes[h] == kNoBox && !holder.whole) continue;
      if (cell.boxes[h] == kNoBox)
        throw Error(Blame::kCaller,
                    fmt::format("{}: found nobody who has {}, expected somebody",
                                holder.name,
                                to_string(cell.box)));
      const size_t box = at(cell.boxes[h]);
      const Runs runs =
          runs_in(holder.layout.factors, holder.layout.boxes[box], cells.factors, cell.box);
      const std::vector<int>& own = devices[h][box];
      if (holder.gives) result.from.push_back({holder.first_member + own[0], runs});
      if (holder.takes)
        for (int device : own) result.to.push_back({holder.first_member + device, runs});
    }
    if (result.from.empty() || result.to.empty())
      throw Error(Blame::kCaller,
                  fmt::format("{}: found nobody who {} {}, expected somebody",
                              fmt::join(names, ", "),
                              result.from.empty() ? "gives" : "takes",
                              to_string(cell.box)));
    std::ranges::sort(result.from, {}, &SyncEnd::member);
    std::ranges::sort(result.to, {}, &SyncEnd::member);
  }
  return tensor;
}

IndexInterval piece_of(const SyncCell& cell, size_t place) {
  auto count = static_cast<int64_t>(cell.to.size()), i = static_cast<int64_t>(place);
  if (const std::optional<size_t> keeper = keeper_of(cell)) {
    if (place == *keeper) return {0, cell.length};
    --count;
    if (place > *keeper) --i;
  }
  const int64_t whole = cell.length / count, rest = cell.length % count;
  const int64_t begin = i * whole + std::min(i, rest);
  return {begin, begin + whole + (i < rest ? 1 : 0)};
}

bool goes_to(const SyncCell& cell, size_t place, int member) {
  const std::optional<size_t> keeper = keeper_of(cell);
  return !keeper || (place == *keeper) == (member == cell.to[*keeper].member);
}

int64_t given(const SyncTensor& tensor, int member) {
  return elements(tensor, member, &SyncCell::from);
}
int64_t taken(const SyncTensor& tensor, int member) {
  return elements(tensor, member, &SyncCell::to);
}

SyncTraffic traffic_of(const GradientSync& sync) {
  const size_t n = sync.members.size();
  SyncTraffic traffic{std::vector<int64_t>(n * n), std::vector<int64_t>(n * n)};
  for (const auto& tensor : sync.tensors)
    for (const SyncCell& cell : *tensor)
      for (size_t place = 0; place < cell.to.size(); ++place) {
        const int64_t length = piece_of(cell, place).size();
        const size_t sums = at(cell.to[place].member);
        for (const SyncEnd& end : cell.from)
          if (at(end.member) != sums) traffic.first[at(end.member) * n + sums] += length;
        for (const SyncEnd& end : cell.to)
          if (at(end.member) != sums && goes_to(cell, place, end.member))
            traffic.second[sums * n + at(end.member)] += length;
      }
  return traffic;
}

void verify(const GradientSync& sync, const std::string& place) {
  std::set<const SyncTensor*> known;
  for (size_t t = 0; t < sync.tensors.size(); ++t) {
    verify_members(sync, t, place);
    if (!known.insert(sync.tensors[t].get()).second) continue;
    const std::string tensor = fmt::format("{}: tensor {}", place, t);
    for (size_t c = 0; c < sync.tensors[t]->size(); ++c) {
      const SyncCell& cell = (*sync.tensors[t])[c];
      const std::string here = fmt::format("{}: cell {}", tensor, c);
      if (cell.length < 1) refuse(here, fmt::format("found {} elements", cell.length));
      verify_ends(cell.from, cell.length, sync.members.size(), here + ": from");
      verify_ends(cell.to, cell.length, sync.members.size(), here + ": to");
    }
    verify_cover(*sync.tensors[t], &SyncCell::from, tensor + ": from");
    verify_cover(*sync.tensors[t], &SyncCell::to, tensor + ": to");
  }
}

}  // namespace medley
