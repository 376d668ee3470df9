#include "medley/elastic/leader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace medley {

Leader::Leader(std::vector<std::string> devices, LeaderOptions options)
    : devices_(std::move(devices)), options_(options), members_(devices_.begin(), devices_.end()) {}

void Leader::lost(const std::string& device, const std::string& cause, Nanoseconds) {
  expected_.erase(device);
  arrived_.erase(device);
  if (members_.erase(device) == 0) return;
  reports_.erase(device);
  if (!why_) why_ = fmt::format("{}: {}", device, cause);
}

void Leader::left(const std::string& device) {
  members_.erase(device);
  reports_.erase(device);
}

void Leader::failed(int generation,
                    const std::string& cause,
                    const std::string& suspect,
                    Nanoseconds) {
  if (generation != generation_ || phase_ == Phase::kEnded) return;
  if (!suspect.empty()) suspects_.insert(suspect);
  if (phase_ != Phase::kAgree && !why_) why_ = cause;
}

void Leader::lives(const std::string& device, Nanoseconds now) { heard_[device] = now; }

void Leader::reported(int generation, const StepLeft& left, int state, Nanoseconds) {
  if (generation == generation_ && members_.contains(left.device))
    reports_[left.device] = {left, state};
}

void Leader::built(int generation, const std::string& device, Nanoseconds) {
  if (generation == generation_ && phase_ == Phase::kBuild) built_.insert(device);
}

void Leader::expect(const std::string& device, Nanoseconds) { expected_.insert(device); }

void Leader::arrived(const std::string& device, Nanoseconds) {
  if (expected_.erase(device) > 0) arrived_.insert(device);
}

std::vector<std::string> Leader::members() const {
  std::vector<std::string> members;
  std::ranges::copy_if(devices_, std::back_inserter(members), [&](const std::string& device) {
    return members_.contains(device);
  });
  return members;
}

std::vector<Order> Leader::next(Nanoseconds now) {
  std::vector<Order> orders;
  if (phase_ != Phase::kEnded && phase_ != Phase::kAgree && why_) stop(orders, now);
  if (phase_ == Phase::kAgree) agree(orders, now);
  if (phase_ == Phase::kBuild) wait_for_all_built(orders, now);
  return orders;
}

void Leader::stop(std::vector<Order>& orders, Nanoseconds now) {
  orders.push_back({Order::Kind::kStop, generation_, "", *why_, {}});
  phase_ = Phase::kAgree;
  since_ = now;
}

void Leader::agree(std::vector<Order>& orders, Nanoseconds now) {
  for (const std::string& device : members()) {
    const auto report = reports_.find(device);
    if (report != reports_.end()) {
      if (report->second.left.reached == Reached::kTorn)
        fence(device, "its step can neither be finished nor taken back", orders);
      continue;
    }
    const auto heard = heard_.find(device);
    const bool lives = heard != heard_.end() && heard->second > since_;
    const bool is_suspect = suspects_.contains(device) && !lives;
    const Nanoseconds patience = is_suspect ? options_.suspect : options_.answer;
    if (now - (lives ? heard->second : since_) > patience || now - since_ > options_.busy)
      fence(device, "it does not say where it is", orders);
  }
  if (reports_.size() < members_.size()) return;
  const std::vector<StepLeft> left = of_use();
  if (left.empty()) return end("no device that has a state is left", orders);
  if (now - since_ > options_.restart) expected_.clear();
  if (!expected_.empty()) return;
  const std::variant<Decision, std::string> decided = decide(left);
  if (const auto* no = std::get_if<std::string>(&decided)) return end(*no, orders);
  members_.insert(arrived_.begin(), arrived_.end());
  arrived_.clear();
  Agreement next = agreement(std::get<Decision>(decided));
  if (is_in_vain(next))
    return end(fmt::format("failed {} times after step {}, the last time: {}",
                           identical_,
                           next.decision.step,
                           why_.value_or("")),
               orders);
  orders.push_back({Order::Kind::kBegin, 0, "", "", std::move(next)});
  ++generation_;
  phase_ = Phase::kBuild;
  since_ = now;
  why_.reset();
  suspects_.clear();
  built_.clear();
  reports_.clear();
}

std::vector<std::string> staying(const Agreement& agreement) {
  std::vector<std::string> left = agreement.members;
  for (const std::string& device : agreement.leaving) std::erase(left, device);
  return left;
}

std::string eldest(const Agreement& agreement) {
  for (const std::string& device : agreement.members)
    if (agreement.states.at(device) >= 0) return device;
  throw Error(Blame::kUs, "no member of a generation has a state");
}

Agreement Leader::agreement(const Decision& decision) const {
  Agreement agreement{generation_ + 1, members(), {}, decision};
  for (const std::string& device : agreement.members) agreement.states[device] = -1;
  for (const StepLeft& each : of_use())
    agreement.states[each.device] = reports_.at(each.device).state;
  return agreement;
}

std::vector<StepLeft> Leader::of_use() const {
  const auto age = [](const StepLeft& left) { return std::pair(left.back, left.loads); };
  std::pair<int, int> newest;
  for (const auto& [device, report] : reports_)
    if (report.state >= 0) newest = std::max(newest, age(report.left));
  std::vector<StepLeft> left;
  for (const auto& [device, report] : reports_)
    if (report.state >= 0 && age(report.left) == newest) left.push_back(report.left);
  return left;
}

// Returns whether a failure without a lost device would repeat forever.
bool Leader::is_in_vain(const Agreement& next) {
  const bool identical = next.members == last_.members && next.decision.step == last_.decision.step;
  identical_ = identical ? identical_ + 1 : 1;
  last_ = next;
  return identical_ > options_.most_identical;
}

void Leader::wait_for_all_built(std::vector<Order>& orders, Nanoseconds now) {
  std::vector<std::string> late;
  for (const std::string& device : members())
    if (!built_.contains(device)) late.push_back(device);
  if (late.empty()) {
    phase_ = Phase::kRun;
    orders.push_back({Order::Kind::kGoOn, generation_, "", "", {}});
    return;
  }
  if (now - since_ <= options_.build) return;
  for (const std::string& device : late) fence(device, "it has not come back in time", orders);
  stop(orders, now);
}

void Leader::fence(const std::string& device, const std::string& why, std::vector<Order>& orders) {
  members_.erase(device);
  reports_.erase(device);
  if (!why_) why_ = fmt::format("{}: {}", device, why);
  orders.push_back({Order::Kind::kFence, generation_, device, why, {}});
}

void Leader::end(const std::string& why, std::vector<Order>& orders) {
  phase_ = Phase::kEnded;
  orders.push_back({Order::Kind::kEnd, generation_, "", why, {}});
}

}  // namespace medley
