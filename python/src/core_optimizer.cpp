// medley._core.Optimizer: maps parameters to update rules.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "medley/prepare/optimizer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Rules = std::vector<std::tuple<std::string,
                                     std::vector<double>,
                                     std::map<std::string, std::string>,
                                     std::vector<std::string>,
                                     int>>;

void make_optimizer(medley::Optimizer* self,
                    const Rules& rules,
                    const std::map<std::string, int>& rule_of,
                    double max_norm,
                    bool gradient_norm,
                    double average,
                    double loss_scale,
                    int64_t good_steps) {
  medley::Optimizer made{{}, rule_of, max_norm, gradient_norm, average, {loss_scale, good_steps}};
  for (const auto& [kind, numbers, programs, states, scalars] : rules) {
    made.rules.push_back({kind, numbers, {}, states, scalars});
    for (const auto& [shape, text] : programs)
      made.rules.back().programs.emplace(shape, medley::program_of(text));
    update_op_of(made.rules.back());
  }
  new (self) medley::Optimizer(std::move(made));
}

}  // namespace

void init_optimizer(nb::module_& m) {
  nb::class_<medley::Optimizer>(
      m, "Optimizer", "What updates the parameters: rules, and which parameter has which.")
      .def("__init__",
           &make_optimizer,
           "rules"_a,
           "rule_of"_a = std::map<std::string, int>(),
           "max_norm"_a = 0.0,
           "gradient_norm"_a = true,
           "average"_a = 0.0,
           "loss_scale"_a = medley::LossScale().first,
           "good_steps"_a = medley::LossScale().good_steps,
           "A rule is a kind, the numbers of its op, programs by shape, the names of its states "
           "then, and how many scalars a step gives it; `rule_of` has numbers of rules by "
           "parameter, the first rule the others. `loss_scale`: the first one, if a plan needs it; "
           "it doubles after `good_steps`.");
}
