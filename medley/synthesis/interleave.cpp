#include "medley/synthesis/interleave.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "medley/base/parallel.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/node_levels.h"
#include "medley/synthesis/ratio_problem.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

constexpr int64_t kInterleave = 2;

struct Priced {
  Plan plan;
  Program program;
  Nanoseconds step;
};

class Interleaving {
 public:
  explicit Interleaving(const Request& request) : request_(request) {}

  Plan run(const Plan& one, Program program) {
    const auto first = static_cast<int64_t>(only_pipeline(one).microbatches.size());
    int64_t count = std::max(first, kInterleave);
    if (!may_have(count) || !may_win(simulate(program, *request_.costs))) return one;
    const Nanoseconds step = price(request_, program);
    best_ = {one, std::move(program), step};
    // More micro-batches free memory, but take longer.
    for (bool faster = true; faster && may_have(count); count *= 2) {
      std::optional<Priced> two = priced(interleaved(one, count));
      faster = two && two->step < best_.step;
      keep(std::move(two));
    }
    const Pipeline& found = only_pipeline(best_.plan);
    if (found.interleave > 1 && found.stages[0].mesh.shape.size() == 1) {
      spread_over_nodes();
      divide_otherwise();
    }
    return std::move(best_.plan);
  }

 private:
  // Returns nullopt if the plan cannot be lowered.
  std::optional<Priced> priced(Plan plan) const {
    Program program;
    Nanoseconds step;
    const auto why = why_left_out(request_, [&] {
      program = lower(request_, plan);
      step = price(request_, program);
    });
    if (why) return std::nullopt;
    return Priced{std::move(plan), std::move(program), step};
  }

  bool may_have(int64_t count) const {
    if (request_.microbatches > 0 && count != request_.microbatches) return false;
    return request_.cache.analysis->coupling.empty() && count <= kManyMicrobatches &&
           count <= request_.global_batch;
  }

  // Returns whether interleaving may win. Reordered calls shorten only the waits of a device.
  bool may_win(const Simulation& simulation) const {
    Nanoseconds least = simulation.step;
    for (const SimulatedDevice& device : simulation.devices) {
      Nanoseconds waits;
      for (const SimulatedCall& call : device.calls)
        if (call.call.function != FunctionKind::kUpdate) waits += call.waits;
      least = std::min(least, waits);
    }
    if (request_.faster_than && simulation.step - least >= *request_.faster_than) return false;
    return least / simulation.step >= kWorthTrying;
  }

  // Keeps a faster plan. Returns whether it fits.
  bool keep(std::optional<Priced> found) {
    if (!found || find_misfit(found->program, request_)) return false;
    if (found->step < best_.step) best_ = std::move(*found);
    return true;
  }

  Plan interleaved(Plan plan, int64_t count) const {
    only_pipeline(plan).interleave = kInterleave;
    only_pipeline(plan).in_flight.clear();
    return with_rows(plan, step_rows(plan), count);
  }

  // Spreads shares over nodes if ports dominate: with overlapped compute they count for more.
  void spread_over_nodes() {
    if (uneven_ports(simulate(best_.program, *request_.costs), request_.costs->topology()) <
        kWorthTrying)
      return;
    const std::vector<int>& devices = best_.program.stages[0].devices;
    const std::vector<double> speeds = speeds_of(request_, devices);
    std::vector<Plan> plans;
    const auto count = static_cast<int64_t>(only_pipeline(best_.plan).microbatches.size());
    for (const auto& shares : shares_of_levels(request_.cluster, devices, speeds))
      for (const int64_t of : {count, 2 * count})
        if (may_have(of)) plans.push_back(interleaved(with_shares(best_.plan, shares), of));
    std::vector<std::optional<Priced>> found(plans.size());
    for_each_in_parallel(found.size(), [&](size_t i) { found[i] = priced(std::move(plans[i])); });
    for (std::optional<Priced>& each : found) keep(std::move(each));
  }

  // Divides by new ratios, since overlapped messages no longer affect the shares.
  void divide_otherwise() {
    for (;;) {
      const auto ratios = best_ratios(ratio_problem(best_.plan, best_.program, *request_.costs));
      const auto* found = std::get_if<Ratios>(&ratios);
      const Nanoseconds before = best_.step;
      if (!found || !keep(priced(with_ratios(best_.plan, found->shares))) || best_.step == before)
        return;
    }
  }

  const Request& request_;
  Priced best_;
};

}  // namespace

Plan interleave_if_faster(const Request& request, const Plan& plan, Program program) {
  return Interleaving(request).run(plan, std::move(program));
}

}  // namespace medley
