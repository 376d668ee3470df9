#pragma once

// How an op may be sharded. One line per op says it; everything else is derived. Names ops, never
// modules or models. Knows nothing of plans, devices or states.

#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

// What a result becomes along a label that it does not carry, when the label is split.
enum class Absent : uint8_t {
  kSum,         // a partial sum
  kMax,         // a partial maximum
  kUnaffected,  // the full value on every device
};

struct Label {
  std::string name;  // as in the rule's line; broadcast and view labels are "d0", "d1", ...
  Size size;
  bool locked = false;  // may not be split
  bool select = false;  // holds indices into a range: the local op takes the range's offset; splits
                        // only at the leading factor
  bool composite = false;  // `locked` is set too: free only once the op is replaced by expand():
                           // softmax over a split vocabulary
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

// Where the label `label` of an op is cut: at factor `factor` of its ordered factors.
struct Cut {
  int label = kNone;
  int factor = 0;
  auto operator<=>(const Cut&) const = default;
};

// A factor of a label that is split: its elements on this device, where they start, and over all
// devices; `behind` are the elements of the label's factors behind it.
struct LocalCut {
  Cut cut;
  Size length, offset, full;
  Size behind{1};
};

// What the local form of an op may use. Sizes are in the symbols of the local graph.
struct LocalForm {
  const Graph* global = nullptr;  // the graph and the op before sharding
  const Op* op = nullptr;
  const Instance* instance = nullptr;
  std::vector<LocalCut> cuts;  // of different factors
  std::vector<TensorType> operands,
      results;  // local types, parallel to operands(op) and op.results; of absent ones: anything
  // Local sizes, offsets and full sizes of every factor of the first result, in order (for dropout
  // and arange). The offset of a factor that is not cut is 0; the batch factor's full size is the
  // global batch and its offset the global row.
  std::vector<Size> factor_sizes, factor_offsets, factor_fulls;
  // Of these, the batch factor, if rows are counted over the global batch; kNone: those of a
  // micro-batch are counted by themselves.
  int counted_rows = kNone;
  Size step_rows{1};  // of the global batch, or of the micro-batch if that is a batch of its own
};

// Rewrites the arguments (and, for select labels, the name) of `local`, a copy of the op whose
// operands are already local.
using Localize = void (*)(Op& local, const LocalForm& form);

// Floating point operations and bytes that must move, for given local types.
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
};  // kView moves nothing

struct Rule {
  std::string_view op;       // "aten.mm.default"
  std::string_view pattern;  // "m k, k n -> m n"; empty if `instance` is given
  std::string_view linear;   // "{0}{1}"
  Localize localize = nullptr;
  std::optional<Instance> (*instance)(const Graph&, const Op&) =
      nullptr;  // for layout ops, whose labels depend on arguments
  WorkClass work = WorkClass::kMemory;
  bool reads_producers = false;  // `instance` looks at the ops that made the operands
};

// All rules, sorted by op; made of one table per family (ops/<family>.cpp).
const std::vector<Rule>& rules();
const Rule* find_rule(std::string_view op);

// Returns the instance of the op's rule; nothing if it has no rule or the rule does not fit these
// arguments (then "replicate" is the only choice).
std::optional<Instance> instantiate(const Graph& graph, const Op& op);

// Replaces an op with a composite label by ops of its own meaning whose label is not locked (max,
// sum and their partial results are all-reduced by whoever shards them). Appends to `graph`,
// returns the results (kNone for one that is None). Requires: the op's instance has a composite
// label.
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
