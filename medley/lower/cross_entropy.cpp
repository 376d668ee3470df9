#include "medley/lower/cross_entropy.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "medley/base/at.h"
#include "medley/graph/rewrite.h"
#include "medley/program/lifetimes.h"

namespace medley {
namespace {

constexpr std::string_view kLogSoftmax = "aten._log_softmax.default";
constexpr std::string_view kLogSoftmaxBackward = "aten._log_softmax_backward_data.default";
constexpr std::string_view kLoss = "aten.nll_loss_forward.default";
constexpr std::string_view kLossBackward = "aten.nll_loss_backward.default";

// Below this, fusing saves little memory, and PyTorch's kernels take one launch each.
constexpr int64_t kFewestClasses = 2048;
// On a GPU our kernels take a third longer than PyTorch's (benchmarks/results/gpu_202611.md). They
// are used if the logits of 8,192 rows, three times in f32, exceed a sixteenth of its memory.
constexpr double kBytesOfAClass = 16.0 * 8192 * 3 * 4, kMostClasses = 1e15;

class CrossEntropy {
 public:
  CrossEntropy(LoweredStage& stage,
               int64_t fewest_classes,
               std::map<Phase, std::vector<Item>>& items,
               const std::vector<ValueId>& keep)
      : fewest_classes_(fewest_classes),
        graph_(stage.graph),
        items_(items),
        readers_(graph_.values.size()) {
    for (const auto& [phase, order] : items)
      for (const Item& item : order)
        for (ValueId value : uses(stage, item))
          if (value != kNone)
            readers_[at(value)].push_back(item.kind == Item::Kind::kOp ? item.index : kNone);
    for (ValueId value : keep)
      if (value != kNone) readers_[at(value)].push_back(kNone);
  }

  void run() {
    for (const auto& [phase, order] : items_)
      for (const Item& item : order)
        if (item.kind == Item::Kind::kOp && graph_.ops[at(item.index)].name == kLogSoftmax)
          fuse(item.index);
    if (!gone_.empty()) erase_ops();
  }

 private:
  struct Backward {
    OpId loss, softmax;
    std::vector<OpId> casts;  // views, and the cast behind them
  };
  struct Uses {
    std::vector<OpId> losses;
    std::vector<Backward> backward;
  };

  Op& op(OpId id) { return graph_.ops[at(id)]; }
  const TensorType& type(ValueId value) const { return graph_.values[at(value)].type; }

  // Returns the only reader of a value, or kNone.
  OpId reader(ValueId value) const {
    const std::vector<OpId>& all = readers_[at(value)];
    return all.size() == 1 ? all[0] : kNone;
  }

  bool fits(const Op& softmax) const {
    const TensorType& logits = type(tensor_argument(softmax, 0));
    const auto* dim = std::get_if<Size>(&softmax.arguments.at(1));
    return logits == type(softmax.results[0]) && logits.shape.size() == 2 && dim &&
           (*dim == Size(1) || *dim == Size(-1)) && logits.shape[1].symbols.empty() &&
           logits.shape[1].coefficient >= fewest_classes_ &&
           (logits.dtype == DType::kF32 || logits.dtype == DType::kF64);
  }

  // Returns the readers of log-probabilities if they are only the loss and its backward ops.
  std::optional<Uses> uses_of(ValueId scores) {
    Uses found;
    for (OpId id : readers_[at(scores)]) {
      if (id == kNone) return std::nullopt;
      const Op& each = op(id);
      if (each.name == kLoss && tensor_argument(each, 0) == scores) {
        found.losses.push_back(id);
      } else if (each.name == kLossBackward && tensor_argument(each, 1) == scores) {
        const OpId softmax = reader(each.results[0]);
        if (softmax == kNone || op(softmax).name != kLogSoftmaxBackward ||
            tensor_argument(op(softmax), 0) != each.results[0] ||
            tensor_argument(op(softmax), 1) != scores ||
            type(op(softmax).results[0]) != type(scores))
          return std::nullopt;
        found.backward.push_back({id, softmax, {}});
      } else if (each.name == kLogSoftmaxBackward && tensor_argument(each, 1) == scores) {
        const OpId maker = graph_.values[at(tensor_argument(each, 0))].producer;
        if (maker == kNone || op(maker).name != kLossBackward ||
            tensor_argument(op(maker), 1) != scores)
          return std::nullopt;
      } else {
        return std::nullopt;
      }
    }
    return found;
  }

  bool is_cast(OpId id, DType to) {
    return op(id).name == "aten._to_copy.default" && type(op(id).results[0]).dtype == to &&
           type(op(id).results[0]).shape == type(tensor_argument(op(id), 0)).shape;
  }

  // Returns the cast from 16 bits that made `x`, and the views behind it; empty if there is none.
  std::vector<OpId> casts_before(ValueId x) {
    std::vector<OpId> found;
    for (ValueId value = x;;) {
      const OpId maker = graph_.values[at(value)].producer;
      if (maker == kNone || (value != x && reader(value) == kNone)) return {};
      found.insert(found.begin(), maker);
      value = tensor_argument(op(maker), 0);
      if (is_cast(maker, DType::kF32)) {
        const DType from = type(value).dtype;
        return from == DType::kBF16 || from == DType::kF16 ? found : std::vector<OpId>{};
      }
      if (!is_view(op(maker))) return {};
    }
  }

  std::vector<OpId> casts_behind(ValueId x, DType to) const {
    std::vector<OpId> found;
    for (ValueId value = x;;) {
      const OpId next = reader(value);
      if (next == kNone) return {};
      found.push_back(next);
      const Op& each = graph_.ops[at(next)];
      if (each.name == "aten._to_copy.default")
        return type(each.results[0]).dtype == to ? found : std::vector<OpId>{};
      if (!is_view(each)) return {};
      value = each.results[0];
    }
  }

  // Swaps a cast and a view that follow each other.
  void swap(OpId first, OpId second) {
    Op &a = op(first), &b = op(second);
    const ValueId from = tensor_argument(a, 0), between = a.results[0];
    std::swap(a.name, b.name);
    std::swap(a.arguments, b.arguments);
    std::swap(a.module, b.module);
    std::swap(a.source, b.source);
    a.arguments[0] = ValueArgument{from};
    b.arguments[0] = ValueArgument{between};
    const TensorType &in = type(from), &out = type(b.results[0]);
    graph_.values[at(between)].type =
        is_view(a) ? TensorType{in.dtype, out.shape} : TensorType{out.dtype, in.shape};
  }

  void fuse(OpId id) {
    if (!fits(op(id))) return;
    const ValueId scores = op(id).results[0];
    std::optional<Uses> found = uses_of(scores);
    if (!found) return;
    const ValueId logits = without_cast(id, *found);
    const TensorType of_logits = type(logits);
    const DType inside = of_logits.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    graph_.values[at(scores)].type = {inside, {of_logits.shape[0]}};
    op(id).name = "medley.log_sum_exp.default";
    op(id).arguments = {ValueArgument{logits}};
    const std::vector<Argument> kept{ValueArgument{logits}, ValueArgument{scores}};
    for (OpId loss : found->losses) {
      op(loss).name = "medley.cross_entropy.default";
      std::vector<Argument>& arguments = op(loss).arguments;  // self, target, weight, ...
      arguments.erase(arguments.begin());
      arguments.insert(arguments.begin(), kept.begin(), kept.end());
    }
    for (const Backward& each : found->backward) {
      op(each.softmax).name = "medley.cross_entropy_backward.default";
      std::vector<Argument> arguments = op(each.loss).arguments;  // grad, self, target, ...
      arguments.erase(arguments.begin() + 1);
      arguments.insert(arguments.begin(), kept.begin(), kept.end());
      op(each.softmax).arguments = std::move(arguments);
      gone_.insert(each.loss);
    }
  }

  // Returns the logits before their cast, if all gradients are cast back; else the logits.
  ValueId without_cast(OpId softmax, Uses& found) {
    const ValueId x = tensor_argument(op(softmax), 0);
    const std::vector<OpId> before = casts_before(x);
    if (before.empty()) return x;
    const DType narrow = type(tensor_argument(op(before[0]), 0)).dtype;
    for (Backward& each : found.backward) {
      each.casts = casts_behind(op(each.softmax).results[0], narrow);
      if (each.casts.empty()) return x;
    }
    for (size_t i = 0; i + 1 < before.size(); ++i) swap(before[i], before[i + 1]);
    for (const Backward& each : found.backward) {
      for (size_t i = each.casts.size() - 1; i > 0; --i) swap(each.casts[i - 1], each.casts[i]);
      const OpId cast = each.casts[0];
      const ValueId result = op(cast).results[0];
      op(each.softmax).results = {result};
      graph_.values[at(result)].producer = each.softmax;
      gone_.insert(cast);
    }
    if (reader(x) != kNone) gone_.insert(before.back());
    std::erase(readers_[at(x)], softmax);
    return tensor_argument(op(before.back()), 0);
  }

  void erase_ops() {
    std::vector<OpId> now(graph_.ops.size(), kNone);
    std::vector<Op> ops;
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      if (gone_.contains(static_cast<OpId>(i))) continue;
      now[i] = static_cast<OpId>(ops.size());
      ops.push_back(std::move(graph_.ops[i]));
    }
    graph_.ops = std::move(ops);
    for (Value& value : graph_.values)
      if (value.producer != kNone) value.producer = now[at(value.producer)];
    for (auto& [phase, order] : items_) {
      std::erase_if(order, [&](const Item& item) {
        return item.kind == Item::Kind::kOp && gone_.contains(item.index);
      });
      for (Item& item : order)
        if (item.kind == Item::Kind::kOp) item.index = now[at(item.index)];
    }
  }

  const int64_t fewest_classes_;
  Graph& graph_;
  std::map<Phase, std::vector<Item>>& items_;
  std::vector<std::vector<OpId>> readers_;  // [value] in items; kNone: a communication, or kept
  std::set<OpId> gone_;
};

}  // namespace

int64_t fewest_classes(const std::vector<int>& devices, const Cluster& cluster) {
  double fewest = kMostClasses;
  for (int device : devices) {
    const DeviceKind& kind = cluster.kind(device);
    fewest = std::min(fewest, kind.name == "CPU" ? 0 : kind.memory_bytes / kBytesOfAClass);
  }
  return std::max(kFewestClasses, static_cast<int64_t>(fewest));
}

void fuse_cross_entropy(LoweredStage& stage,
                        int64_t fewest_classes,
                        std::map<Phase, std::vector<Item>>& items,
                        const std::vector<ValueId>& keep) {
  CrossEntropy(stage, fewest_classes, items, keep).run();
}

}  // namespace medley
