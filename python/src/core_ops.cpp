// An op's rule, and its local form for a cut: for the conformance test, which changes instances to
// check that invalid ones are found.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <string>

#include "medley/graph/graph.h"
#include "medley/ops/instance.h"
#include "medley/ops/rule.h"

namespace nb = nanobind;

namespace {

using medley::Argument;
using medley::Graph;
using medley::Instance;
using medley::kNone;
using medley::Label;
using medley::LocalForm;
using medley::Op;
using medley::Size;
using medley::TensorType;
using medley::ValueId;

// Symbols of a local graph: "b", "length", "offset".
const std::vector<std::string> kSymbols{"b", "length", "offset"};
const Size kRows = Size::of(0), kLength = Size::of(1), kOffset = Size::of(2);

// Ops before it make operands.
const Op& last_op(const Graph& graph) { return graph.ops.back(); }

// Reads "12", "b", "b*12".
Size parse_size(const std::string& text) {
  std::istringstream in(text);
  Size size(1);
  for (std::string factor; std::getline(in, factor, '*');)
    size = size * (factor == "b" ? kRows : Size(std::stoll(factor)));
  return size;
}

// The factors of an op's labels, of which one may be cut.
class LocalOp {
 public:
  LocalOp(const Graph& graph,
          const Instance& instance,
          int label,
          int factor,
          const std::vector<std::vector<std::string>>& factors)
      : graph_(graph), op_(last_op(graph)), instance_(instance), label_(label), factor_(factor) {
    for (const std::vector<std::string>& texts : factors) {
      std::vector<Size>& sizes = factors_.emplace_back();
      for (const std::string& text : texts) sizes.push_back(parse_size(text));
    }
  }

  Graph make() {
    result_.name = "local";
    result_.symbols = kSymbols;
    form_.global = &graph_;
    form_.op = &op_;
    form_.instance = &instance_;
    Op local = op_;
    add_operands(local);
    for (size_t j = 0; j < op_.results.size(); ++j)
      form_.results.push_back(op_.results[j] == kNone
                                  ? TensorType{}
                                  : local_type(op_.results[j], instance_.results.at(j)));
    if (label_ != kNone) describe_cut();
    describe_result();
    if (const medley::Rule* rule = medley::find_rule(op_.name); rule && rule->localize)
      rule->localize(local, form_);
    add_results(std::move(local));
    return std::move(result_);
  }

 private:
  using Dims = std::vector<std::vector<int>>;

  // Returns local sizes of a dim's factors. Cuts only the first occurrence of a label in a tensor.
  std::vector<Size> local_factors(const std::vector<int>& labels, bool& is_cut) const {
    std::vector<Size> sizes;
    for (int label : labels) {
      const std::vector<Size>& own = factors_.at(static_cast<size_t>(label));
      for (size_t k = 0; k < own.size(); ++k) {
        const bool cut = label == label_ && static_cast<int>(k) == factor_ && !is_cut;
        sizes.push_back(cut ? kLength : own[k]);
        is_cut = is_cut || cut;
      }
    }
    return sizes;
  }

  TensorType local_type(ValueId value, const Dims& dims) const {
    TensorType type = medley::type_of(graph_, value);
    bool is_cut = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].empty()) continue;
      Size size(1);
      for (const Size& each : local_factors(dims[d], is_cut)) size = size * each;
      type.shape.at(d) = size;
    }
    return type;
  }

  void add_operands(Op& local) {
    const std::vector<ValueId> values = medley::operands(op_);
    std::vector<ValueId> locals;
    for (size_t i = 0; i < values.size(); ++i) {
      form_.operands.push_back(
          values[i] == kNone ? TensorType{} : local_type(values[i], instance_.operands.at(i)));
      locals.push_back(values[i] == kNone ? kNone
                                          : medley::add_input(result_,
                                                              medley::InputKind::kBuffer,
                                                              "x" + std::to_string(i),
                                                              form_.operands[i]));
    }
    size_t next = 0;
    medley::for_each_operand(local, [&](ValueId& value) {
      while (values[next] == kNone) ++next;
      value = locals[next++];
    });
  }

  void describe_cut() {
    const std::vector<Size>& own = factors_.at(static_cast<size_t>(label_));
    Size inner(1);
    for (size_t k = static_cast<size_t>(factor_) + 1; k < own.size(); ++k) inner = inner * own[k];
    form_.cuts = {
        {{label_, factor_}, kLength, kOffset, own.at(static_cast<size_t>(factor_)), inner}};
  }

  void describe_result() {
    if (op_.results.empty() || op_.results[0] == kNone) return;
    bool is_cut = false;
    for (const std::vector<int>& labels : instance_.results.at(0)) {
      const std::vector<Size> sizes = local_factors(labels, is_cut);
      form_.factor_sizes.insert(form_.factor_sizes.end(), sizes.begin(), sizes.end());
      for (int label : labels) {
        const std::vector<Size>& own = factors_.at(static_cast<size_t>(label));
        form_.factor_fulls.insert(form_.factor_fulls.end(), own.begin(), own.end());
      }
    }
    for (const Size& size : form_.factor_sizes)
      form_.factor_offsets.push_back(size == kLength ? kOffset : Size(0));
  }

  void add_results(Op local) {
    std::vector<TensorType> types;
    for (size_t j = 0; j < op_.results.size(); ++j)
      if (op_.results[j] != kNone) types.push_back(form_.results[j]);
    const std::vector<ValueId> fresh = medley::add_op(result_, std::move(local), types);
    size_t next = 0;
    for (size_t j = 0; j < op_.results.size(); ++j)
      if (op_.results[j] != kNone)
        result_.outputs.push_back(
            {medley::OutputKind::kBuffer, "y" + std::to_string(j), fresh.at(next++)});
  }

  const Graph& graph_;
  const Op& op_;
  const Instance& instance_;
  int label_, factor_;
  std::vector<std::vector<Size>> factors_;  // [label]
  LocalForm form_;
  Graph result_;
};

}  // namespace

void init_ops(nb::module_& m) {
  nb::class_<Label>(m, "Label", "A dim that several tensors of an op share.")
      .def_ro("name", &Label::name)
      .def_prop_ro("size", [](const Label& label) { return to_string(label.size, kSymbols); })
      .def_rw("locked", &Label::locked)
      .def_rw("select", &Label::select)
      .def_rw("composite", &Label::composite);

  nb::enum_<medley::Absent>(m, "Absent", "What a result is along a label that it lacks.")
      .value("SUM", medley::Absent::kSum)
      .value("MAX", medley::Absent::kMax)
      .value("UNAFFECTED", medley::Absent::kUnaffected);

  nb::class_<Instance>(m, "Instance", "A rule applied to one op with its shapes.")
      .def("copy", [](const Instance& instance) { return instance; })
      .def("__str__",
           [](const Instance& instance) { return medley::to_string(instance, kSymbols); })
      .def_rw("labels", &Instance::labels)
      .def_rw("operands", &Instance::operands)
      .def_rw("results", &Instance::results)
      .def_rw("linear", &Instance::linear)
      .def_rw("shape_only", &Instance::shape_only)
      .def_rw("absent", &Instance::absent);

  m.def(
      "rule_names",
      [] {
        std::vector<std::string> names;
        for (const medley::Rule& rule : medley::rules()) names.emplace_back(rule.op);
        return names;
      },
      "The ops that have a rule, sorted.");
  m.def(
      "has_expansion",
      [](const std::string& op) { return medley::has_expansion(op); },
      nb::arg("op"),
      "Whether a composite label of this op can be cut.");
  m.def(
      "instantiate",
      [](const Graph& graph) { return medley::instantiate(graph, last_op(graph)); },
      nb::arg("graph"),
      "The rule of the graph's last op with its shapes; None if it does not fit.");
  m.def(
      "local_op",
      [](const Graph& graph,
         const Instance& instance,
         int label,
         int factor,
         const std::vector<std::vector<std::string>>& factors) {
        return LocalOp(graph, instance, label, factor, factors).make();
      },
      nb::arg("graph"),
      nb::arg("instance"),
      nb::arg("label"),
      nb::arg("factor"),
      nb::arg("factors"),
      "The last op as a device computes it when a factor of a label is cut (-1: none): a graph "
      "with the symbols b, length and offset, inputs x0, x1, ... and outputs y0, y1, ... `factors` "
      "are those of every label.");
}
