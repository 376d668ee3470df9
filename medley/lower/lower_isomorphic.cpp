#include "medley/lower/lower_isomorphic.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

void expect_isomorphic(bool is_isomorphic, const std::string& place) {
  if (!is_isomorphic)
    throw Error(Blame::kCaller,
                fmt::format("{}: found another one at this size than at the planned one, expected "
                            "the same but for sizes",
                            place));
}

// Compares the factors of every dim by number, since placements and choices refer to them.
bool have_isomorphic_factors(const Factors& a, const Factors& b) {
  return std::ranges::equal(a.values, b.values, [](const auto& one, const auto& other) {
    return std::ranges::equal(
        one, other, [](const auto& x, const auto& y) { return x.size() == y.size(); });
  });
}

void require_isomorphic(const Graph& planned, const Graph& other, const std::string& place) {
  expect_isomorphic(planned.ops.size() == other.ops.size(), place + ": the number of ops");
  expect_isomorphic(planned.inputs == other.inputs, place + ": inputs");
  expect_isomorphic(planned.outputs == other.outputs, place + ": outputs");
  for (size_t i = 0; i < planned.ops.size(); ++i) {
    const Op &a = planned.ops[i], &b = other.ops[i];
    expect_isomorphic(a.name == b.name && a.phase == b.phase && a.results == b.results &&
                          operands(a) == operands(b),
                      fmt::format("{}: op {} {} in \"{}\"", place, i, a.name, a.module));
  }
  for (size_t i = 0; i < planned.values.size(); ++i) {
    const TensorType &a = planned.values[i].type, &b = other.values[i].type;
    expect_isomorphic(a.dtype == b.dtype && a.shape.size() == b.shape.size(),
                      fmt::format("{}: value %{}", place, i));
  }
}

void require_isomorphic(const Communication& a, const Communication& b, const std::string& place) {
  expect_isomorphic(a.kind == b.kind && a.reduce == b.reduce && a.axis == b.axis &&
                        a.inputs == b.inputs && a.outputs == b.outputs && a.devices == b.devices &&
                        a.lane == b.lane && a.depth == b.depth && !a.sync == !b.sync,
                    fmt::format("{}: {}", place, a.name));
}

// Checks that values of the run's lifetime have equal sizes in both.
void require_same_state(const LoweredStage& a, const LoweredStage& b, const std::string& place) {
  for (const PlacedValue& placed : a.inputs) {
    const ValueId value = placed.input.value;
    if (a.lifetimes[at(value)] != Lifetime::kRun) continue;
    for (size_t d = 0; d < a.devices.size(); ++d) {
      const auto shape = [&](const LoweredStage& stage) {
        return evaluate_all(type_of(stage.graph, value).shape, stage.tables[0][d]);
      };
      expect_isomorphic(
          shape(a) == shape(b),
          fmt::format("{}: {} \"{}\"", place, to_string(placed.input.kind), placed.input.name));
    }
  }
}

}  // namespace

void require_isomorphic(const Program& planned, const Program& other) {
  expect_isomorphic(planned.stages.size() == other.stages.size(), "the number of stages");
  for (size_t s = 0; s < planned.stages.size(); ++s) {
    const LoweredStage &a = planned.stages[s], &b = other.stages[s];
    const std::string place = fmt::format("stage {}", s);
    require_isomorphic(a.graph, b.graph, place);
    expect_isomorphic(a.devices == b.devices && a.mesh == b.mesh && a.pipeline == b.pipeline &&
                          a.bf16_as == b.bf16_as,
                      place);
    expect_isomorphic(a.lifetimes == b.lifetimes && a.loss == b.loss && a.metrics == b.metrics &&
                          a.gradient_norm == b.gradient_norm && a.commit == b.commit,
                      place + ": its values");
    expect_isomorphic(a.communications.size() == b.communications.size(),
                      place + ": communications");
    for (size_t c = 0; c < a.communications.size(); ++c)
      require_isomorphic(a.communications[c], b.communications[c], place);
    expect_isomorphic(a.functions == b.functions, place + ": a function");
    expect_isomorphic(a.calls == b.calls && a.tables.size() == b.tables.size(), place + ": calls");
    require_same_state(a, b, place);
  }
}

Program lower_isomorphic(const Graph& planned,
                         const Graph& other,
                         const Plan& plan,
                         const Cluster& cluster,
                         const Optimizer& optimizer,
                         const LowerOptions& options) {
  require_isomorphic(planned, other, "graph");
  const GraphAnalysis known = analyse(planned, plan, cluster, optimizer);
  const GraphAnalysis here = analyse(other, plan, cluster, optimizer);
  std::vector<Completed> decided = prepare_stages(known, plan);
  std::vector<Completed> stages = prepare_stages(here, plan, decided);
  for (size_t s = 0; s < decided.size(); ++s)
    require_isomorphic(
        decided[s].prepared->graph, stages[s].prepared->graph, fmt::format("stage {}", s));
  decided = complete_stages(std::move(decided), plan);
  for (size_t s = 0; s < decided.size(); ++s) {
    stages[s] = complete_isomorphic(std::move(stages[s]), decided[s]);
    expect_isomorphic(have_isomorphic_factors(*decided[s].factors, *stages[s].factors),
                      fmt::format("stage {}: the factors of its values", s));
  }
  return lower(here, std::move(stages), plan, cluster, options);
}

}  // namespace medley
