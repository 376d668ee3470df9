#include "medley/sim/identical_devices.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "medley/base/at.h"
#include "medley/program/calls.h"
#include "medley/program/symbols_read.h"

namespace medley {

std::vector<std::vector<int>> identical_devices(const LoweredStage& stage,
                                                const CostModel& costs,
                                                CommunicationPrices& communications) {
  std::set<Symbol> read;
  for (const Op& op : stage.graph.ops) add_symbols_of_work(stage.graph, op, read);
  const std::vector<Symbol> symbols(read.begin(), read.end());
  std::map<std::tuple<std::string, DType, std::vector<int64_t>>, std::vector<int>> by_work;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    std::vector<int64_t> lengths;
    for (const auto& tables : stage.tables) {
      const std::vector<int64_t> own = values_of(symbols, tables[d]);
      lengths.insert(lengths.end(), own.begin(), own.end());
    }
    const std::string& kind = costs.cluster().kind(stage.devices[d]).name;
    by_work[{kind, bf16_as(stage, d), std::move(lengths)}].push_back(static_cast<int>(d));
  }
  std::vector<std::vector<int>> open, done;
  for (auto& [work, devices] : by_work) open.push_back(std::move(devices));
  while (!open.empty()) {
    std::vector<int> devices = std::move(open.back());
    open.pop_back();
    int index = 0;
    const int all = static_cast<int>(stage.communications.size());
    while (index < all && communications.are_identical(index, devices)) ++index;
    if (index == all) {
      done.push_back(std::move(devices));
      continue;
    }
    // Other classes may have lost peers.
    open.insert(
        open.end(), std::make_move_iterator(done.begin()), std::make_move_iterator(done.end()));
    done.clear();
    const AlongAxis axis = along(stage.mesh, stage.communications[at(index)].axis);
    std::map<int, std::vector<int>> parts;
    for (const int device : devices) parts[axis.first(device)].push_back(device);
    for (auto& [first, part] : parts) open.push_back(std::move(part));
  }
  std::ranges::sort(done);
  return done;
}

std::vector<Role> roles_of(const LoweredStage& stage,
                           int number,
                           const std::vector<int>& devices,
                           const CommunicationPrices& prices,
                           const std::map<std::vector<int>, uint64_t>& groups) {
  std::vector<Role> roles;
  for (const Communication& communication : stage.communications) {
    const int index = static_cast<int>(roles.size());
    Role& role = roles.emplace_back();
    role.member = prices.member(index, devices[0]);
    for (const int device : devices)
      if (prices.member(index, device) == 0) role.leads.push_back(device);
    if (communication.devices.empty()) {
      const AlongAxis axis = along(stage.mesh, communication.axis);
      const int first = axis.first(devices[0]);
      role.members = static_cast<int>(
          std::ranges::count(devices, first, [&](int device) { return axis.first(device); }));
      role.group = (static_cast<uint64_t>(number) << 48) +
                   (static_cast<uint64_t>(communication.axis & 0xff) << 40) +
                   static_cast<uint64_t>(stage.devices[at(first)]);
    } else {
      role.members = static_cast<int>(devices.size());
      role.group = communication.lane < 0
                       ? (uint64_t{1} << 62) + groups.at(communication.devices)
                       : (uint64_t{2} << 62) + static_cast<uint64_t>(communication.lane);
    }
  }
  return roles;
}

}  // namespace medley
