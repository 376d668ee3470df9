// Plans, for medley.plan: reading, finding, verifying and explaining them.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <variant>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/planner/planner.h"
#include "python/src/core_costs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Cluster;
using medley::Graph;
using medley::Plan;

// Lets an interrupt, or any other exception of a signal handler, end the search.
void check_signals(std::string_view, size_t, size_t) {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Warns that a plan without that candidate may be slower.
void warn(const std::string& why) {
  const nb::gil_scoped_acquire held;
  const std::string text = "medley.plan left out a candidate that cannot be lowered: " + why;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) throw nb::python_error();
}

void read_plan(Plan* self, const std::string& text, const std::string& file) {
  new (self) Plan(medley::parse_plan(text, file));
}

std::vector<std::string> devices_of(const Plan& plan) {
  std::vector<std::string> all;
  for (const medley::Pipeline& pipeline : plan.pipelines)
    for (const medley::Stage& stage : pipeline.stages)
      all.insert(all.end(), stage.mesh.devices.begin(), stage.mesh.devices.end());
  return all;
}

std::vector<std::vector<int64_t>> mesh_shapes(const Plan& plan) {
  std::vector<std::vector<int64_t>> all;
  for (const medley::Pipeline& pipeline : plan.pipelines)
    for (const medley::Stage& stage : pipeline.stages) all.push_back(stage.mesh.shape);
  return all;
}

Plan find_plan(const Graph& graph,
               const Cluster& cluster,
               const std::string& strategy,
               int64_t global_batch,
               int64_t microbatches,
               const medley::Optimizer& optimizer,
               const std::string& profile,
               const std::string& file,
               const std::vector<std::string>& devices,
               int tolerate_node_loss,
               bool loss_over_microbatches) {
  const medley::CostModel costs = costs_of(cluster, profile, file);
  const medley::Outcome outcome =
      medley::plan({.graph = graph,
                    .cluster = cluster,
                    .costs = &costs,
                    .strategy = strategy,
                    .global_batch = global_batch,
                    .microbatches = microbatches,
                    .devices = devices,
                    .optimizer = optimizer,
                    .tolerate_node_loss = tolerate_node_loss,
                    .loss_over_microbatches = loss_over_microbatches,
                    .listener = {.progress = check_signals, .left_out = warn}});
  if (const auto* no = std::get_if<medley::Infeasible>(&outcome))
    throw medley::Error(medley::Blame::kCaller, "no plan fits: " + to_string(*no));
  return std::get<Plan>(outcome);
}

}  // namespace

void init_planning(nb::module_& m) {
  nb::class_<Plan>(m, "Plan", "A plan, read once (docs/formats/plan.md).")
      .def("__init__",
           &read_plan,
           "text"_a,
           "file"_a = "<plan>",
           "Raises ValueError naming the place of what is no plan.")
      .def(
          "text",
          [](const Plan& plan) { return print(plan); },
          "Its JSON, in the one form that equal plans have.")
      .def_ro("strategy", &Plan::strategy, "That made it, \"\" if written by hand.")
      .def_ro("cluster_hash", &Plan::cluster_hash, "Of the cluster that it is for, or \"\".")
      .def_ro("global_batch", &Plan::global_batch, "Rows of a step.")
      .def_ro(
          "tolerate_node_loss", &Plan::tolerate_node_loss, "How many nodes may be lost: 0 or 1.")
      .def_prop_ro(
          "loss_over",
          [](const Plan& plan) { return medley::kLossOver[plan.loss_over_microbatches ? 1 : 0]; },
          "\"batch\", or \"microbatches\".")
      .def_prop_ro("devices", &devices_of, "Names of the devices, in the order of the ranks.")
      .def_prop_ro("mesh_shapes", &mesh_shapes, "Sizes of the axes of the mesh of each stage.");
  m.def("plan",
        &find_plan,
        "graph"_a,
        "cluster"_a,
        "strategy"_a,
        "global_batch"_a,
        "microbatches"_a = 0,
        "optimizer"_a = medley::Optimizer(),
        "profile"_a = "",
        "file"_a = "<profile>",
        "devices"_a = std::vector<std::string>(),
        "tolerate_node_loss"_a = 0,
        "loss_over_microbatches"_a = false,
        nb::call_guard<nb::gil_scoped_release>(),
        "Returns the plan; 0 micro-batches stands for as few as fit. What the optimizer keeps "
        "counts. `profile` is a text; `devices`: those that may be used, all if there are none. Of "
        "`tolerate_node_loss` nodes, 0 or 1, any may be lost and the state is still there.");
  m.def("verify_plan",
        &medley::verify_plan,
        "plan"_a,
        "file"_a,
        "graph"_a,
        "cluster"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Raises ValueError with the first reason why the plan cannot be run.");
  m.def(
      "explain_plan",
      [](const Plan& plan,
         const Graph& graph,
         const Cluster& cluster,
         bool expanded,
         const std::string& profile,
         const std::string& file) {
        const medley::CostModel costs = costs_of(cluster, profile, file);
        return explain(plan, {.graph = &graph, .costs = &costs, .expanded = expanded});
      },
      "plan"_a,
      "graph"_a,
      "cluster"_a,
      "expanded"_a = false,
      "profile"_a = "",
      "file"_a = "<profile>",
      "Returns a plan in plain words and tables.");
}
