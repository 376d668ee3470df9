#include "medley/network/bundles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "medley/base/at.h"

namespace medley {
namespace {

constexpr int64_t kNeverDue = std::numeric_limits<int64_t>::max();
constexpr int64_t kLongest = int64_t{1} << 61;
constexpr double kMostRate = 0x1p62;

int32_t most_bundles(int num_devices, int32_t num_flows) {
  const int64_t pairs = int64_t{num_devices} * num_devices;
  return static_cast<int32_t>(std::min<int64_t>(pairs, num_flows));
}

}  // namespace

std::vector<uint64_t> link_rates(const Topology& topology) {
  std::vector<uint64_t> result;
  for (const Link& link : topology.links()) {
    const double units = std::ldexp(link.bandwidth.value * 1e-9, kUnitBits);
    result.push_back(static_cast<uint64_t>(std::clamp(units, 1.0, kMostRate)));
  }
  return result;
}

Bundles::Memory::Memory(MemoryLayout& layout, int num_devices, int num_links, int32_t num_flows)
    : header(layout.place<Header>(1)),
      of_pair(layout.place<int32_t>(int64_t{num_devices} * num_devices)),
      on_link(layout.place<int32_t>(num_links)),
      flows(layout.place<Flow>(int64_t{num_flows} + 1)),
      bundles(layout, most_bundles(num_devices, num_flows), "flows"),
      active(layout.place<int32_t>(most_bundles(num_devices, num_flows))),
      dues(layout.place<int64_t>(most_bundles(num_devices, num_flows))) {}

Bundles::Bundles(const Memory& memory, const Topology& topology)
    : memory_(memory),
      topology_(topology),
      shares_(link_rates(topology)),
      is_found_(topology.links().size()) {
  for (int d = 0; d < topology.num_devices(); ++d)
    representative_.push_back(
        d > 0 && topology.node(d) == topology.node(d - 1) ? representative_.back() : d);
}

int32_t Bundles::find(int from, int to) {
  int a = representative_[at(from)], b = representative_[at(to)];
  if (a == b) a = from, b = to;
  const int32_t pair = a * topology_.num_devices() + b;
  int32_t& index = memory_.of_pair[pair];
  if (index != 0) return index;
  index = memory_.bundles.take();
  Bundle& bundle = memory_.bundles[index];
  const Route route = topology_.route(from, to);
  bundle.pair = pair;
  bundle.num_links = route.num_links;
  for (int i = 0; i < route.num_links; ++i) {
    const int link = bundle.links[i] = route.links[at(i)];
    int32_t& first = memory_.on_link[link];
    bundle.after[i] = first;
    if (first != 0) before_on(first, link) = index;
    first = index;
  }
  bundle.place = memory_.header->num_active++;
  memory_.active[bundle.place] = index;
  memory_.dues[bundle.place] = kNeverDue;
  return index;
}

size_t Bundles::place_on(const Bundle& bundle, int link) {
  return at(std::find(bundle.links, bundle.links + bundle.num_links, link) - bundle.links);
}

int32_t& Bundles::before_on(int32_t index, int link) {
  Bundle& bundle = memory_.bundles[index];
  return bundle.before[place_on(bundle, link)];
}

int32_t& Bundles::after_on(int32_t index, int link) {
  Bundle& bundle = memory_.bundles[index];
  return bundle.after[place_on(bundle, link)];
}

void Bundles::drop(int32_t index) {
  Bundle& bundle = memory_.bundles[index];
  for (int i = 0; i < bundle.num_links; ++i) {
    const int link = bundle.links[i];
    const int32_t before = bundle.before[i], after = bundle.after[i];
    (before == 0 ? memory_.on_link[link] : after_on(before, link)) = after;
    if (after != 0) before_on(after, link) = before;
  }
  const int32_t last = --memory_.header->num_active;
  memory_.active[bundle.place] = memory_.active[last];
  memory_.dues[bundle.place] = memory_.dues[last];
  memory_.bundles[memory_.active[last]].place = bundle.place;
  memory_.of_pair[bundle.pair] = 0;
  memory_.bundles.give_back(index);
}

void Bundles::settle(Bundle& bundle, int64_t now) {
  bundle.level += Units{bundle.rate} * static_cast<uint64_t>(now - bundle.since);
  bundle.since = now;
}

void Bundles::change(int32_t index) {
  Bundle& bundle = memory_.bundles[index];
  if (bundle.is_changed) return;
  bundle.is_changed = 1;
  changed_.push_back(index);
}

// Skew heaps (https://en.wikipedia.org/wiki/Skew_heap).
int32_t Bundles::meld(int32_t a, int32_t b) {
  int32_t root = 0;
  int32_t* link = &root;
  while (a != 0 && b != 0) {
    if (memory_.flows[b].end < memory_.flows[a].end) std::swap(a, b);
    *link = a;
    Flow& flow = memory_.flows[a];
    a = flow.right;
    flow.right = flow.left;
    link = &flow.left;
  }
  *link = a != 0 ? a : b;
  return root;
}

void Bundles::begin(int32_t flow, int from, int to, int64_t bytes, int64_t now) {
  const int32_t index = find(from, to);
  Bundle& bundle = memory_.bundles[index];
  settle(bundle, now);
  memory_.flows[flow] = {bundle.level + (Units{static_cast<uint64_t>(bytes)} << kUnitBits), 0, 0};
  bundle.first = meld(bundle.first, flow);
  ++bundle.count;
  change(index);
}

void Bundles::take_ended(int64_t now, std::vector<int32_t>& ended) {
  for (int32_t i = 0; i < memory_.header->num_active; ++i) {
    if (memory_.dues[i] > now) continue;
    const int32_t index = memory_.active[i];
    Bundle& bundle = memory_.bundles[index];
    settle(bundle, now);
    const Units level = bundle.level + (bundle.rate >> kRoundingBits);
    while (bundle.first != 0 && memory_.flows[bundle.first].end <= level) {
      ended.push_back(bundle.first);
      const Flow& flow = memory_.flows[bundle.first];
      bundle.first = meld(flow.left, flow.right);
      --bundle.count;
    }
    change(index);
  }
}

void Bundles::remove(const std::function<bool(int32_t flow)>& is_gone, int64_t now) {
  std::vector<int32_t> left;
  for (int32_t i = 0; i < memory_.header->num_active; ++i) {
    const int32_t index = memory_.active[i];
    Bundle& bundle = memory_.bundles[index];
    settle(bundle, now);
    left.assign(bundle.first != 0 ? 1 : 0, bundle.first);
    bundle.first = bundle.count = 0;
    while (!left.empty()) {
      const int32_t index_of_flow = left.back();
      left.pop_back();
      Flow& flow = memory_.flows[index_of_flow];
      for (const int32_t child : {flow.left, flow.right})
        if (child != 0) left.push_back(child);
      if (is_gone(index_of_flow)) continue;
      flow.left = flow.right = 0;
      bundle.first = meld(bundle.first, index_of_flow);
      ++bundle.count;
    }
    change(index);
  }
}

void Bundles::find_bundle(int32_t index) {
  Bundle& bundle = memory_.bundles[index];
  if (bundle.is_found) return;
  bundle.is_found = 1;
  connected_.push_back(index);
}

// Puts the bundles connected with `start` through links into connected_.
void Bundles::find_connected(int32_t start) {
  connected_.clear();
  found_links_.clear();
  find_bundle(start);
  for (size_t next = 0; next < connected_.size(); ++next) {
    const Bundle& bundle = memory_.bundles[connected_[next]];
    for (int i = 0; i < bundle.num_links; ++i) {
      const int link = bundle.links[i];
      if (is_found_[at(link)]) continue;
      is_found_[at(link)] = 1;
      found_links_.push_back(link);
      for (int32_t other = memory_.on_link[link]; other != 0; other = after_on(other, link))
        find_bundle(other);
    }
  }
  for (const int link : found_links_) is_found_[at(link)] = 0;
}

void Bundles::share_connected(int64_t now) {
  sharing_.clear();
  sharing_bundles_.clear();
  for (const int32_t index : connected_) {
    Bundle& bundle = memory_.bundles[index];
    bundle.shared_count = bundle.count;
    if (bundle.count == 0) continue;
    sharing_.push_back({{bundle.links, at(bundle.num_links)}, bundle.count});
    sharing_bundles_.push_back(index);
  }
  const std::vector<uint64_t>& rates = shares_.rates(sharing_);
  for (size_t i = 0; i < sharing_bundles_.size(); ++i) {
    Bundle& bundle = memory_.bundles[sharing_bundles_[i]];
    if (bundle.rate == rates[i]) continue;
    settle(bundle, now);
    bundle.rate = rates[i];
    change(sharing_bundles_[i]);
  }
}

void Bundles::share(int64_t now) {
  const size_t came_or_went = changed_.size();
  for (size_t i = 0; i < came_or_went; ++i) {
    const Bundle& bundle = memory_.bundles[changed_[i]];
    // Equal counts keep the rates: other flows replaced the old ones.
    if (bundle.count == bundle.shared_count) continue;
    find_connected(changed_[i]);
    share_connected(now);
    for (const int32_t index : connected_) memory_.bundles[index].is_found = 0;
  }
  for (const int32_t index : changed_) {
    Bundle& bundle = memory_.bundles[index];
    bundle.is_changed = 0;
    if (bundle.count == 0) {
      drop(index);
      continue;
    }
    settle(bundle, now);
    const Units end = memory_.flows[bundle.first].end;
    const Units level = bundle.level + (bundle.rate >> kRoundingBits);
    const Units takes = end <= level ? 0 : (end - level + bundle.rate - 1) / bundle.rate;
    memory_.dues[bundle.place] = now + static_cast<int64_t>(std::min<Units>(takes, kLongest));
  }
  changed_.clear();
}

int64_t Bundles::next_end() const {
  int64_t next = kNeverDue;
  for (int32_t i = 0; i < memory_.header->num_active; ++i) next = std::min(next, memory_.dues[i]);
  return next;
}

}  // namespace medley
