#pragma once

// The valid shardings of an op, as one line per op; the rest is derived. Names ops, never modules
// or models. Knows nothing of plans, devices or placements.

#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

// The placement of a result along a split label that it does not carry.
enum class Absent : uint8_t {
  kSum,         // a partial sum
  kMax,         // a partial maximum
  kUnaffected,  // the full value on every device
};

struct Label {
  std::string name;  // as in the rule's line; broadcast and view labels are "d0", "d1", ...
  Size size;
  bool locked = false;  // may not be split
  // Indices into a range: the local op takes its offset; splits only at the leading factor.
  bool select = false;
  // Also `locked`, until expand() replaces the op: softmax over a split vocabulary.
  bool composite = false;
};

// A rule applied to one op with its shapes. Labels of a dim are an ordered product; a dim of size 1
// has none.
struct Instance {
  std::vector<Label> labels;
  std::vector<std::vector<std::vector<int>>>
      operands;  // [operand][dim] -> labels, operands as in operands(op); empty if absent
  std::vector<std::vector<std::vector<int>>> results;  // [result][dim] -> labels
  std::vector<std::vector<int>> linear;  // groups of operands in which the op is jointly linear
  std::vector<bool> shape_only;          // [operand]: its elements are not read
  std::vector<std::vector<Absent>>
      absent;  // [result][label], used where results[result] lacks the label
};

// The cut of label `label` of an op, at factor `factor` of its ordered factors.
struct Cut {
  int label = kNone;
  int factor = 0;
  auto operator<=>(const Cut&) const = default;
};

// A factor of a split label: its elements on this device, their start, and its elements over all
// devices. `behind`: the elements of the label's factors behind it.
struct LocalCut {
  Cut cut;
  Size length, offset, full;
  Size behind{1};
};

// The input of localizing an op. Sizes are in the symbols of the local graph.
struct LocalForm {
  const Graph* global = nullptr;  // the graph and the op before sharding
  const Op* op = nullptr;
  const Instance* instance = nullptr;
  std::vector<LocalCut> cuts;  // for different factors
  std::vector<TensorType> operands,
      results;  // local types, parallel to operands(op) and op.results; undefined for absent ones
  // Local sizes, offsets and full sizes of every factor of the first result, in order (for dropout
  // and arange). The offset of an uncut factor is 0. For the batch factor, the full size is the
  // global batch and the offset the global row.
  std::vector<Size> factor_sizes, factor_offsets, factor_fulls;
  // The index of the batch factor, if rows are counted over the global batch; kNone: within the
  // micro-batch.
  int counted_rows = kNone;
  Size step_rows{1};  // in the global batch, or in the micro-batch if that is a batch of its own
};

// Rewrites the arguments (and, for select labels, the name) of `local`, a copy of the op whose
// operands are already local.
using Localize = void (*)(Op& local, const LocalForm& form);

// Floating-point operations and moved bytes, for given local types.
struct Work {
  double flops = 0;
  double bytes = 0;
  bool operator==(const Work&) const = default;
};
enum class WorkClass : uint8_t {
  kMatmul,
  kAttention,
  kConvolution,
  kMemory,
  kView
};  // kView moves no bytes

struct Rule {
  std::string_view op;       // "aten.mm.default"
  std::string_view pattern;  // "m k, k n -> m n"; empty if `instance` is given
  std::string_view linear;   // "{0}{1}"
  Localize localize = nullptr;
  std::optional<Instance> (*instance)(const Graph&, const Op&) =
      nullptr;  // for layout ops, whose labels depend on arguments
  WorkClass work = WorkClass::kMemory;
  bool reads_producers = false;  // `instance` reads the ops that made the operands
};

// Returns all rules, sorted by op, from one table per family (ops/<family>.cpp).
const std::vector<Rule>& rules();
const Rule* find_rule(std::string_view op);

// Returns the instance of the op's rule, or nothing if it has no rule or the rule does not fit
// these arguments. The only choice then is "replicate".
std::optional<Instance> instantiate(const Graph& graph, const Op& op);

// Replaces an op with a composite label by equivalent ops whose label is not locked. Their maxima
// and sums are all-reduced when sharded. Appends to `graph` and returns the results (kNone for an
// absent one). Requires: the op's instance has a composite label.
bool has_expansion(std::string_view op);
std::vector<ValueId> expand(Graph& graph, const Op& op);

// Returns the work of an op with these concrete operand and result types.
Work work(const Op& op,
          const std::vector<TensorType>& operands,
          const std::vector<TensorType>& results,
          const std::vector<int64_t>& symbol_values);
WorkClass work_class(std::string_view op);
// Returns the operand whose storage result `result` of an op shares, or kNone: views, and the
// parameters and moments of an update.
ValueId storage_operand(const Op& op, size_t result);

}  // namespace medley
