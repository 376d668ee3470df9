#include "medley/synthesis/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/units.h"
#include "medley/sharding/parts.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

Bytes bytes(double count) { return {static_cast<int64_t>(count)}; }

const std::vector<Microbatch>& microbatches_of(const Plan& plan) {
  return only_pipeline(plan).microbatches;
}

// A stage of the program, which numbers those of all pipelines.
struct StageOfPlan {
  size_t pipeline = 0, stage = 0;
};
StageOfPlan stage_of(const Plan& plan, int number) {
  StageOfPlan found{0, at(number)};
  while (found.stage >= plan.pipelines[found.pipeline].stages.size())
    found.stage -= plan.pipelines[found.pipeline++].stages.size();
  return found;
}

std::string text_of(const Plan& plan, const StageOfPlan& where) {
  std::string text;
  if (plan.pipelines.size() > 1) text = fmt::format("pipeline {}, ", where.pipeline);
  if (!text.empty() || plan.pipelines[where.pipeline].stages.size() > 1)
    text += fmt::format("stage {}: ", where.stage);
  return text;
}

// Returns the most rows of a device, or of all devices in its place on the first axis.
int64_t most_rows(const Pipeline& pipeline, size_t stage, size_t device) {
  const Mesh& mesh = pipeline.stages[stage].mesh;
  const size_t place = device * at(mesh.shape[0]) / mesh.devices.size();
  int64_t most = 0;
  for (const Microbatch& microbatch : microbatches_of(pipeline, stage))
    most = std::max(most, microbatch.lengths.empty() ? microbatch.rows : microbatch.lengths[place]);
  return most;
}

std::string rows_text(int64_t rows) { return rows == 1 ? "1 row" : fmt::format("{} rows", rows); }

std::string microbatches_text(size_t count) {
  return count == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", count);
}

// Parts with exact lengths fit only extents of their sum, maybe the batch's.
bool has_exact_lengths(const Plan& plan) {
  return std::any_of(
      plan.parts.begin(), plan.parts.end(), [](const Part& part) { return !part.lengths.empty(); });
}

// Returns the number nearest to `fails` for which `fits`, which is true for `holds` and false for
// `fails`.
template <typename Fits>
int64_t last_that_fits(int64_t holds, int64_t fails, const Fits& fits) {
  while (std::abs(holds - fails) > 1) {
    const int64_t middle = holds + (fails - holds) / 2;
    (fits(middle) ? holds : fails) = middle;
  }
  return holds;
}

std::string more_memory(const std::vector<Misfit::Shortage>& found, const Request& request) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, found.size()); ++i)
    text += fmt::format("{}{} more on {}",
                        i == 0 ? "" : ", ",
                        to_string(bytes(found[i].bytes)),
                        request.cluster.devices[at(found[i].device)].name);
  if (const size_t more = found.size(); more > kNamed)
    text += fmt::format(" and more on {} other{}", more - kNamed, more == kNamed + 1 ? "" : "s");
  return text + " would do";
}

std::string smallest_change(const Plan& plan, const Misfit& misfit, const Request& request) {
  // The division of rows among several pipelines stays unchanged.
  if (plan.pipelines.size() > 1) return more_memory(misfit.shortages, request);
  const std::vector<int64_t> rows = step_rows(plan);
  const auto count = static_cast<int64_t>(microbatches_of(plan).size());
  const int64_t most = std::min(kMostMicrobatches, *std::max_element(rows.begin(), rows.end()));
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const bool may_cut = !plan.loss_over_microbatches && request.cache.analysis->coupling.empty();
  const auto fits_in = [&](int64_t microbatches) {
    return !find_misfit(with_rows(plan, rows, microbatches), request);
  };
  const bool may_help = most <= kManyMicrobatches || !misfit.of_any_count;
  if (may_cut && may_help && count < most && fits_in(most))
    return microbatches_text(at(last_that_fits(most, count, fits_in))) + " would fit";

  std::vector<double> shares(rows.begin(), rows.end());
  const auto fits_with = [&](int64_t batch) {
    return !find_misfit(with_rows(plan, apportion(batch, shares), std::min(count, batch)), request);
  };
  if (total > 1 && !has_exact_lengths(plan) && fits_with(1))
    return fmt::format("a global batch of {} would fit", last_that_fits(1, total, fits_with));
  return more_memory(misfit.shortages, request);
}

// Returns the shortage without advice.
Infeasible shortage_of(const Plan& plan, const Misfit& misfit, const Request& request) {
  const auto& [stage, device, use] = misfit.first;
  const DeviceKind& kind = request.cluster.kind(device);
  const StageOfPlan where = stage_of(plan, stage);
  const Pipeline& pipeline = plan.pipelines[where.pipeline];
  const size_t count = pipeline.microbatches.size();
  return {
      fmt::format("{}{} ({}) needs {} and has {}: it lacks {}",
                  text_of(plan, where),
                  request.cluster.devices[at(device)].name,
                  kind.name,
                  to_string(Bytes{use.peak}),
                  to_string(bytes(kind.memory_bytes)),
                  to_string(bytes(misfit.shortages[0].bytes))),
      fmt::format("\n  {}for up to {} in {}\n  {} of it is for parameters and optimizer state",
                  use.peak_at.empty() ? "" : fmt::format("needed in {}, ", use.peak_at),
                  rows_text(most_rows(pipeline, where.stage, misfit.place)),
                  count == 1 ? "one micro-batch" : fmt::format("each of {} micro-batches", count),
                  to_string(Bytes{use.persistent}))};
}

}  // namespace

double Misfit::bytes() const {
  double sum = 0;
  for (const Shortage& shortage : shortages) sum += shortage.bytes;
  return sum;
}

std::optional<Misfit> find_misfit(const Plan& plan, const Request& request) {
  return find_misfit(lower(request, plan), request);
}

std::optional<Misfit> find_misfit(const Program& program, const Request& request) {
  Misfit misfit;
  int before = -1;
  size_t place = 0;
  for (const DeviceMemory& memory : memory_uses(program)) {
    place = memory.stage == before ? place + 1 : 0;
    before = memory.stage;
    const double has = request.cluster.kind(memory.device).memory_bytes;
    const double missing = static_cast<double>(memory.use.peak) - has;
    if (missing <= 0) continue;
    if (misfit.shortages.empty()) std::tie(misfit.first, misfit.place) = std::tie(memory, place);
    misfit.shortages.push_back({memory.device, missing});
    const int64_t inputs = memory.use.at_peak[at(MemoryPart::kBatch)];
    misfit.of_any_count |= static_cast<double>(memory.use.persistent + inputs) > has;
  }
  if (misfit.shortages.empty()) return std::nullopt;
  return misfit;
}

int64_t times_microbatches(double missing,
                           const Cluster& cluster,
                           const std::vector<int>& devices) {
  double memory = 0;
  for (const int device : devices) memory += cluster.kind(device).memory_bytes;
  int64_t times = 2;
  while (static_cast<double>(2 * times) <= (missing + memory) / memory) times *= 2;
  return times;
}

Infeasible explain_misfit(const Plan& plan, const Request& request) {
  const std::optional<Misfit> misfit = find_misfit(plan, request);
  MEDLEY_CHECK(misfit.has_value());
  Infeasible why = shortage_of(plan, *misfit, request);
  if (!request.faster_than) why.advice = smallest_change(plan, *misfit, request);
  return why;
}

}  // namespace medley
