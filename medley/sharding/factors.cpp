#include "medley/sharding/factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/known_instances.h"

namespace medley {
namespace {

// Extents under refinement: a union-find forest whose roots may be split into an ordered product of
// other extents.
class ExtentForest {
 public:
  ExtentId add(const Size& size) {
    nodes_.push_back({size, static_cast<ExtentId>(nodes_.size()), {}});
    return nodes_.back().parent;
  }

  ExtentId find(ExtentId id) {
    while (at(id).parent != id) id = at(id).parent = at(at(id).parent).parent;
    return id;
  }

  void append_leaves(ExtentId id, std::vector<ExtentId>& leaves) {
    id = find(id);
    if (at(id).children.empty()) {
      if (at(id).size != Size(1)) leaves.push_back(id);
      return;
    }
    for (ExtentId child : std::vector<ExtentId>(at(id).children)) append_leaves(child, leaves);
  }

  // Equates two products of extents, factor by factor from the left. Returns false without a common
  // refinement.
  bool equate(const std::vector<ExtentId>& a, const std::vector<ExtentId>& b) {
    std::vector<ExtentId> left(a.rbegin(), a.rend()), right(b.rbegin(), b.rend());
    for (;;) {
      const std::optional<ExtentId> x = front_leaf(left), y = front_leaf(right);
      if (!x || !y) return !x && !y;
      left.pop_back();
      right.pop_back();
      if (*x == *y) continue;
      if (at(*x).size == at(*y).size) {
        at(std::max(*x, *y)).parent = std::min(*x, *y);
      } else if (std::optional<Size> rest = divide(at(*x).size, at(*y).size)) {
        left.push_back(split(*x, *y, *rest));
      } else if (std::optional<Size> rest_of_y = divide(at(*y).size, at(*x).size)) {
        right.push_back(split(*y, *x, *rest_of_y));
      } else {
        return false;
      }
    }
  }

  const Size& size(ExtentId id) { return at(id).size; }
  int count() const { return static_cast<int>(nodes_.size()); }

 private:
  struct Node {
    Size size;
    ExtentId parent;
    std::vector<ExtentId> children;
  };

  Node& at(ExtentId id) { return nodes_[static_cast<size_t>(id)]; }

  ExtentId split(ExtentId whole, ExtentId first, const Size& rest) {
    const ExtentId second = add(rest);
    at(whole).children = {first, second};
    return second;
  }

  // Returns the first leaf of a stack of extents, replacing a split top by its children.
  std::optional<ExtentId> front_leaf(std::vector<ExtentId>& stack) {
    while (!stack.empty()) {
      const ExtentId top = find(stack.back());
      if (at(top).children.empty()) {
        if (at(top).size != Size(1)) {
          stack.back() = top;
          return top;
        }
        stack.pop_back();
        continue;
      }
      stack.pop_back();
      const std::vector<ExtentId>& children = at(top).children;
      stack.insert(stack.end(), children.rbegin(), children.rend());
    }
    return std::nullopt;
  }

  std::vector<Node> nodes_;
};

class Factorizer {
 public:
  explicit Factorizer(const Graph& graph) : graph_(graph), known_(graph) {}

  Factors run(const std::vector<std::pair<ValueId, ValueId>>& equal, const KnownFactors& known) {
    add_dims();
    for (const auto& [value, sizes] : known) refine(value, sizes);
    tie_batch();
    result_.instances.resize(graph_.ops.size());
    op_labels_.resize(graph_.ops.size());
    for (size_t i = 0; i < graph_.ops.size(); ++i) add_instance(i);
    for (const auto& [a, b] : equal)
      for (size_t d = 0; d < dims(a).size(); ++d) forest_.equate({dims(a)[d]}, {dims(b)[d]});
    tie_outputs();
    collect();
    return std::move(result_);
  }

 private:
  std::vector<ExtentId>& dims(ValueId value) { return dims_[static_cast<size_t>(value)]; }
  const std::vector<Size>& shape(ValueId value) const {
    return graph_.values[static_cast<size_t>(value)].type.shape;
  }

  void add_dims() {
    dims_.resize(graph_.values.size());
    for (size_t v = 0; v < graph_.values.size(); ++v)
      for (const Size& size : graph_.values[v].type.shape) dims_[v].push_back(forest_.add(size));
  }

  void refine(ValueId value, const std::vector<std::vector<Size>>& sizes) {
    MEDLEY_CHECK_EQ(sizes.size(), dims(value).size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d].size() < 2) continue;
      std::vector<ExtentId> product;
      for (const Size& size : sizes[d]) product.push_back(forest_.add(size));
      MEDLEY_CHECK(forest_.equate({dims(value)[d]}, product));
    }
  }

  void tie_batch() {
    std::optional<ExtentId> batch;
    for (const Input& input : graph_.inputs) {
      if (input.kind != InputKind::kBatch) continue;
      for (size_t d = 0; d < shape(input.value).size(); ++d) {
        if (shape(input.value)[d] != Size::of(0)) continue;
        if (batch) forest_.equate({*batch}, {dims(input.value)[d]});
        batch = dims(input.value)[d];
      }
    }
  }

  // Contradictory shapes mean a graph that was not captured; the error names the op.
  std::shared_ptr<const Instance> instance_of(size_t i) {
    const Op& op = graph_.ops[i];
    try {
      return known_.of(op);
    } catch (const std::exception& error) {
      throw Error(
          Blame::kCaller,
          fmt::format("graph \"{}\": {} ({}): found shapes that do not fit together, expected "
                      "those of the op ({})",
                      graph_.name,
                      stable_names(graph_)[i],
                      op.name,
                      error.what()));
    }
  }

  void add_instance(size_t i) {
    const Op& op = graph_.ops[i];
    std::shared_ptr<const Instance> instance = instance_of(i);
    if (!instance) return;
    std::vector<ExtentId>& labels = op_labels_[i];
    for (const Label& label : instance->labels) labels.push_back(forest_.add(label.size));
    if (!tie(operands(op), instance->operands, labels) ||
        !tie(op.results, instance->results, labels))
      return;
    result_.instances[i] = std::move(instance);
  }

  // A tensor without labels is read whole, for any shape.
  static bool is_labelled(const std::vector<std::vector<int>>& dim_labels) {
    return std::any_of(dim_labels.begin(), dim_labels.end(), [](const std::vector<int>& labels) {
      return !labels.empty();
    });
  }

  bool tie(const std::vector<ValueId>& values,
           const std::vector<std::vector<std::vector<int>>>& dim_labels,
           const std::vector<ExtentId>& labels) {
    for (size_t v = 0; v < values.size(); ++v) {
      if (values[v] == kNone || !is_labelled(dim_labels[v])) continue;
      MEDLEY_CHECK_EQ(dim_labels[v].size(), dims(values[v]).size());
      for (size_t d = 0; d < dim_labels[v].size(); ++d) {
        std::vector<ExtentId> product;
        for (int label : dim_labels[v][d]) product.push_back(labels[static_cast<size_t>(label)]);
        if (!forest_.equate({dims(values[v])[d]}, product)) return false;
      }
    }
    return true;
  }

  void tie_outputs() {
    std::map<std::pair<InputKind, std::string>, ValueId> by_name;
    for (const Input& input : graph_.inputs) by_name[{input.kind, input.name}] = input.value;
    for (const Output& output : graph_.outputs) {
      const InputKind kind = output.kind == OutputKind::kBuffer  ? InputKind::kBuffer
                             : output.kind == OutputKind::kState ? InputKind::kState
                                                                 : InputKind::kParameter;
      const auto found = by_name.find({kind, output.name});
      if (output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric ||
          found == by_name.end())
        continue;
      const std::vector<ExtentId>&a = dims(output.value), &b = dims(found->second);
      for (size_t d = 0; d < a.size() && d < b.size(); ++d) forest_.equate({a[d]}, {b[d]});
    }
  }

  void collect() {
    const auto leaves = [&](const std::vector<ExtentId>& extents) {
      std::vector<std::vector<ExtentId>> all;
      for (ExtentId extent : extents) forest_.append_leaves(extent, all.emplace_back());
      return all;
    };
    for (const auto& value : dims_) result_.values.push_back(leaves(value));
    for (const auto& labels : op_labels_) result_.labels.push_back(leaves(labels));
    for (ExtentId id = 0; id < forest_.count(); ++id)
      result_.extent_sizes.push_back(forest_.size(id));
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      if (result_.instances[i] && !consistent(i)) result_.instances[i].reset();
  }

  // A later op may refine a dim differently than equate() assumed; positions must still match.
  bool consistent(size_t i) const {
    const auto check = [&](const std::vector<ValueId>& values,
                           const std::vector<std::vector<std::vector<int>>>& dim_labels) {
      for (size_t v = 0; v < values.size(); ++v) {
        if (values[v] == kNone || !is_labelled(dim_labels[v])) continue;
        for (size_t d = 0; d < dim_labels[v].size(); ++d) {
          std::vector<ExtentId> product;
          for (int label : dim_labels[v][d]) {
            const auto& leaves = result_.labels[i][static_cast<size_t>(label)];
            product.insert(product.end(), leaves.begin(), leaves.end());
          }
          if (product != result_.values[static_cast<size_t>(values[v])][d]) return false;
        }
      }
      return true;
    };
    return check(operands(graph_.ops[i]), result_.instances[i]->operands) &&
           check(graph_.ops[i].results, result_.instances[i]->results);
  }

  const Graph& graph_;
  KnownInstances known_;
  ExtentForest forest_;
  std::vector<std::vector<ExtentId>> dims_;       // [value][dim]
  std::vector<std::vector<ExtentId>> op_labels_;  // [op][label]
  Factors result_;
};

}  // namespace

Factors factorize(const Graph& graph,
                  const std::vector<std::pair<ValueId, ValueId>>& equal,
                  const KnownFactors& known) {
  return Factorizer(graph).run(equal, known);
}

KnownFactors known_inputs(const Graph& graph, const Factors& factors, const Graph& part) {
  const auto is_kept = [](const Input& input) {
    return input.kind == InputKind::kParameter || input.kind == InputKind::kBuffer;
  };
  std::map<std::pair<InputKind, std::string>, ValueId> by_name;
  for (const Input& input : graph.inputs)
    if (is_kept(input)) by_name[{input.kind, input.name}] = input.value;
  KnownFactors known;
  for (const Input& input : part.inputs) {
    const auto found = by_name.find({input.kind, input.name});
    if (found == by_name.end()) continue;
    std::vector<std::vector<Size>>& dims = known.emplace_back(input.value, 0).second;
    for (const std::vector<ExtentId>& dim : factors.values[at(found->second)]) {
      std::vector<Size>& sizes = dims.emplace_back();
      for (ExtentId extent : dim) sizes.push_back(factors.extent_sizes[at(extent)]);
    }
  }
  return known;
}

std::vector<ExtentId> flat_factors(const Factors& factors, ValueId value) {
  std::vector<ExtentId> flat;
  for (const auto& dim : factors.values[static_cast<size_t>(value)])
    flat.insert(flat.end(), dim.begin(), dim.end());
  return flat;
}

std::vector<int64_t> constant_factors(const Factors& factors, ValueId value) {
  std::vector<int64_t> sizes;
  for (ExtentId extent : flat_factors(factors, value))
    sizes.push_back(evaluate(factors.extent_sizes[at(extent)], {}));
  return sizes;
}

int position_of(const Factors& factors, ValueId value, int dim, int factor) {
  int position = factor;
  for (int d = 0; d < dim; ++d)
    position +=
        static_cast<int>(factors.values[static_cast<size_t>(value)][static_cast<size_t>(d)].size());
  return position;
}

std::vector<std::string> fallbacks(const Graph& graph, const Factors& factors) {
  std::vector<bool> depends(graph.values.size(), false);  // on the batch or a parameter
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kBatch || input.kind == InputKind::kParameter)
      depends[static_cast<size_t>(input.value)] = true;
  std::set<std::string> names;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    bool any = false;
    for (ValueId value : operands(graph.ops[i]))
      any = any || (value != kNone && depends[static_cast<size_t>(value)]);
    for (ValueId value : graph.ops[i].results) {
      if (value == kNone) continue;
      bool sized_by_batch = false;
      for (const Size& size : graph.values[static_cast<size_t>(value)].type.shape)
        sized_by_batch = sized_by_batch || !size.is_constant();
      depends[static_cast<size_t>(value)] = any || sized_by_batch;
      if (depends[static_cast<size_t>(value)] && !factors.instances[i])
        names.insert(graph.ops[i].name);
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace medley
