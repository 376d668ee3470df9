// medley._core.Leader: decides which devices of a run resume after a failure, for medley.run.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <set>

#include "medley/base/error.h"
#include "medley/elastic/leader.h"
#include "medley/elastic/reshard.h"
#include "medley/planner/node_loss.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Agreement;
using medley::Leader;
using medley::Order;
using medley::Program;
using medley::ReshardPlan;
using medley::StateReplicas;
using medley::StepLeft;

StepLeft make_left(const std::string& device,
                   int64_t step,
                   const std::string& reached,
                   std::optional<double> committed,
                   bool commits,
                   bool spreads,
                   int back,
                   int loads) {
  const auto known = medley::parse_reached(reached);
  if (!known) throw medley::Error(medley::Blame::kUs, "a step has not reached: " + reached);
  return {device, step, *known, committed, commits, spreads, back, loads};
}

std::string kind_of(const Order& order) {
  switch (order.kind) {
    case Order::Kind::kStop:
      return "stop";
    case Order::Kind::kFence:
      return "fence";
    case Order::Kind::kBegin:
      return "begin";
    case Order::Kind::kGoOn:
      return "go on";
    case Order::Kind::kEnd:
      return "end";
  }
  return "";
}

using Kept = std::map<std::string, std::vector<std::pair<int, int64_t>>>;
using AgreementFields = std::tuple<int,
                                   std::vector<std::string>,
                                   std::map<std::string, int>,
                                   int64_t,
                                   std::optional<double>,
                                   Kept,
                                   std::vector<std::string>>;
using Before = std::tuple<const Program*, std::vector<int>, const StateReplicas*>;

using Names = std::vector<std::pair<std::string, std::string>>;  // kinds and names

ReshardPlan find_reshard(const std::vector<Before>& before,
                         const Program& after,
                         const Names& without) {
  std::vector<medley::Holders> holders;
  for (const auto& [program, devices, replicas] : before)
    holders.push_back({program, devices, replicas});
  const auto any = [](int, int) { return 1.0; };
  return plan_reshard(holders, after, any, {without.begin(), without.end()});
}

int64_t busiest_bytes(const ReshardPlan& moves) {
  std::map<int, int64_t> taken, given;  // by device
  int64_t most = 0;
  for (const medley::ReshardMove& move : moves.moves) {
    if (move.from == move.to) continue;
    most = std::max({most, taken[move.to] += move.bytes(), given[move.from] += move.bytes()});
  }
  return most;
}

ReshardPlan only(const ReshardPlan& moves, const Names& values) {
  const std::set<std::pair<std::string, std::string>> wanted(values.begin(), values.end());
  ReshardPlan some;
  std::map<int, int> place;  // index of a value of `moves` in `some`
  for (size_t v = 0; v < moves.values.size(); ++v)
    if (wanted.contains({moves.values[v].kind, moves.values[v].name})) {
      place[static_cast<int>(v)] = static_cast<int>(some.values.size());
      some.values.push_back(moves.values[v]);
    }
  for (medley::ReshardMove move : moves.moves)
    if (const auto found = place.find(move.value); found != place.end()) {
      move.value = found->second;
      some.moves.push_back(move);
    }
  return some;
}

void init_leader(nb::module_& m) {
  nb::class_<StepLeft>(m, "StepLeft", "What a survivor says of the last step that it has begun.")
      .def(
          "__init__",
          [](StepLeft* self,
             const std::string& device,
             int64_t step,
             const std::string& reached,
             std::optional<double> committed,
             bool commits,
             bool spreads,
             int back,
             int loads) {
            new (self) StepLeft(
                make_left(device, step, reached, committed, commits, spreads, back, loads));
          },
          "device"_a,
          "step"_a,
          "reached"_a,
          "committed"_a.none(),
          "commits"_a,
          "spreads"_a,
          "back"_a = 0,
          "loads"_a = 0)
      .def_prop_ro(
          "fields",
          [](const StepLeft& left) {
            return std::tuple(left.device,
                              left.step,
                              to_string(left.reached),
                              left.committed,
                              left.commits,
                              left.spreads,
                              left.back,
                              left.loads);
          },
          "The arguments that make it, for other processes.")
      .def(
          "catch_up",
          [](const StepLeft& left, int64_t step) {
            const medley::Catching catching = medley::catch_up(left, step);
            return std::pair(catching.finish, catching.undo);
          },
          "step"_a,
          "Returns whether to finish the step, and how many to undo, to have done `step`.");
  nb::class_<Agreement>(m, "Agreement", "What all members of a generation begin it with.")
      .def(
          "__init__",
          [](Agreement* self, const AgreementFields& fields) {
            const auto& [generation, members, states, step, committed, kept, leaving] = fields;
            new (self) Agreement{generation, members, states, {step, committed}, kept, leaving};
          },
          "fields"_a)
      .def_prop_ro(
          "fields",
          [](const Agreement& all) -> AgreementFields {
            const auto& [step, committed] = all.decision;
            return {
                all.generation, all.members, all.states, step, committed, all.kept, all.leaving};
          },
          "All of it in this order, for other processes; a step of -1: none.")
      .def_ro("generation", &Agreement::generation)
      .def_ro("members", &Agreement::members)
      .def_ro("states", &Agreement::states)
      .def_prop_ro("step", [](const Agreement& all) { return all.decision.step; })
      .def_prop_ro("committed", [](const Agreement& all) { return all.decision.committed; })
      .def_rw("kept", &Agreement::kept)
      .def_rw("leaving", &Agreement::leaving)
      .def_prop_ro("staying", &medley::staying, "The members that a plan may use.")
      .def_prop_ro("eldest", &medley::eldest, "The first that has a state: it plans for all.");
  nb::class_<Order>(m, "Order", "What the leader wants done.")
      .def_prop_ro("kind", &kind_of, "stop, fence, begin, go on or end")
      .def_ro("generation", &Order::generation)
      .def_ro("device", &Order::device)
      .def_ro("text", &Order::text)
      .def_ro("agreement", &Order::agreement);
  const auto at = [](int64_t now) { return medley::Nanoseconds{now}; };
  const auto of_device = [at](void (Leader::*tell)(const std::string&, medley::Nanoseconds)) {
    return [at, tell](Leader& leader, const std::string& device, int64_t now) {
      (leader.*tell)(device, at(now));
    };
  };
  nb::class_<Leader>(m, "Leader", "Who of a run goes on after a failure. Times are nanoseconds.")
      .def(
          "__init__",
          [](Leader* self, const std::vector<std::string>& devices) { new (self) Leader(devices); },
          "devices"_a)
      .def(
          "lost",
          [at](Leader& leader, const std::string& device, const std::string& cause, int64_t now) {
            leader.lost(device, cause, at(now));
          },
          "device"_a,
          "cause"_a,
          "now"_a)
      .def("left", &Leader::left, "device"_a)
      .def(
          "failed",
          [at](Leader& leader,
               int generation,
               const std::string& cause,
               const std::string& suspect,
               int64_t now) { leader.failed(generation, cause, suspect, at(now)); },
          "generation"_a,
          "cause"_a,
          "suspect"_a,
          "now"_a)
      .def("lives", of_device(&Leader::lives), "device"_a, "now"_a)
      .def(
          "reported",
          [at](Leader& leader, int generation, const StepLeft& left, int state, int64_t now) {
            leader.reported(generation, left, state, at(now));
          },
          "generation"_a,
          "left"_a,
          "state"_a,
          "now"_a)
      .def(
          "built",
          [at](Leader& leader, int generation, const std::string& device, int64_t now) {
            leader.built(generation, device, at(now));
          },
          "generation"_a,
          "device"_a,
          "now"_a)
      .def("expect", of_device(&Leader::expect), "device"_a, "now"_a)
      .def("arrived", of_device(&Leader::arrived), "device"_a, "now"_a)
      .def(
          "next", [at](Leader& leader, int64_t now) { return leader.next(at(now)); }, "now"_a)
      .def_prop_ro("generation", &Leader::generation)
      .def_prop_ro("runs", &Leader::runs)
      .def_prop_ro("members", &Leader::members);
}

}  // namespace

void init_elastic(nb::module_& m) {
  init_leader(m);
  nb::class_<StateReplicas>(
      m, "StateReplicas", "What one failure would take, and who keeps it, too.")
      .def(
          "__init__",
          [](StateReplicas* self, const Program& program, const medley::Cluster& cluster) {
            new (self) StateReplicas(state_replicas(program, neighbourhood_of(program, cluster)));
          },
          "program"_a,
          "cluster"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("__len__", [](const StateReplicas& replicas) { return replicas.replicas.size(); })
      .def_ro("without", &StateReplicas::without, "Bytes for which no device has memory.");
  m.def(
      "steps_between_copies",
      [](double copies, double step) {
        return medley::steps_between_copies(medley::to_nanoseconds(medley::Seconds{copies}),
                                            medley::to_nanoseconds(medley::Seconds{step}));
      },
      "copies"_a,
      "step"_a,
      "Returns how many steps may pass between copies that take so many seconds, so that they cost "
      "little of the time; `step`: what one takes, 0 if nobody knows.");
  nb::class_<ReshardPlan>(
      m, "ReshardPlan", "How state gets from where it is to where a plan wants it.")
      .def(
          "__init__",
          [](ReshardPlan* self,
             const std::vector<Before>& before,
             const Program& after,
             const Names& without) {
            new (self) ReshardPlan(find_reshard(before, after, without));
          },
          nb::sig("def __init__(self, before: list[tuple[Program | None, list[int], "
                  "StateReplicas | None]], after: Program, "
                  "without: Sequence[tuple[str, str]] = []) -> None"),
          "before"_a,
          "after"_a,
          "without"_a = Names{},
          nb::call_guard<nb::gil_scoped_release>(),
          "`before`: programs, which devices of the cluster have what each of them says, and what "
          "these keep for others. Leaves out the values `without`, by kind and name.")
      .def("only",
           &only,
           "values"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Returns those of some values, by kind and name.")
      .def_ro("lost", &ReshardPlan::lost, "The values that no device has.")
      .def_prop_ro("busiest",
                   &busiest_bytes,
                   "The most bytes that one device takes from others, or gives to them.");
}
