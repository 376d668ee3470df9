#include "medley/measure/wanted.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "medley/cost/op_time.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

constexpr size_t kFew = 4;  // every so many powers of two suffice for an interpolation

// Returns the size that an op's cost depends on: the larger of both within a class.
double amount(const Work& work) { return std::max(work.flops, work.bytes); }

bool takes_time(const SizedOp& op) {
  return op.work_class != WorkClass::kView && amount(op.work) > 0;
}

Graph computed(Graph single, DType bf16_as) {
  replace_bf16(single, bf16_as);
  return single;
}

}  // namespace

std::vector<DeviceKind> device_kinds(const Cluster& cluster) {
  std::map<std::string, DeviceKind> kinds;
  for (const NodePool& pool : cluster.pools) kinds.emplace(pool.kind.name, pool.kind);
  std::vector<DeviceKind> result;
  for (auto& [name, kind] : kinds) result.push_back(kind);
  return result;
}

WantedOps::WantedOps(const Cluster& cluster) : cluster_(cluster) { kinds_ = device_kinds(cluster); }

WantedOp* WantedOps::add(const std::string& kind, const Graph& single, Need need) {
  SizedOp sized = sized_op(single, single.ops[0], {});
  if (!takes_time(sized)) return nullptr;
  ++wanted_.seen;
  const auto [place, is_new] = known_.try_emplace({kind, sized.key}, wanted_.ops.size());
  if (is_new) wanted_.ops.push_back({kind, std::move(sized), single, need, {}});
  WantedOp& found = wanted_.ops[place->second];
  found.need = std::min(found.need, need);
  return &found;
}

void WantedOps::add(const Program& program) {
  for (const LoweredStage& stage : program.stages)
    for (const auto& tables : stage.tables)
      for (size_t d = 0; d < tables.size(); ++d)
        for (const Op& op : stage.graph.ops) {
          if (work_class(op.name) == WorkClass::kView) continue;
          const DeviceKind& kind = cluster_.kind(stage.devices[d]);
          const Graph single = computed(single_op(stage.graph, op, tables[d]), bf16_as(stage, d));
          if (WantedOp* wanted = add(kind.name, single, Need::kProgram)) {
            const SizedOp& sized = wanted->sized;
            wanted->predicted += op_time(kind, sized.work_class, sized.work, sized.dtype);
          }
        }
  wanted_.unique = static_cast<int64_t>(wanted_.ops.size());
}

void WantedOps::add(const Graph& graph, const std::vector<int64_t>& symbols) {
  for (const Op& op : graph.ops) {
    if (work_class(op.name) == WorkClass::kView) continue;
    const Graph single = single_op(graph, op, symbols);
    for (const DeviceKind& kind : kinds_)
      add(kind.name, computed(single, kind.bf16_as), Need::kOther);
  }
  wanted_.unique = static_cast<int64_t>(wanted_.ops.size());
}

Wanted WantedOps::take() {
  std::ranges::stable_sort(
      wanted_.ops, {}, [](const WantedOp& op) { return std::pair(op.need, -op.predicted.value); });
  return std::move(wanted_);
}

void WantedOps::add_grid(const std::vector<int64_t>& pieces) {
  const int64_t seen = wanted_.seen;
  const size_t count = wanted_.ops.size();
  using Class = std::tuple<std::string, WorkClass, DType>;
  std::map<Class, std::pair<double, double>> ranges;
  for (size_t i = 0; i < count; ++i) {
    const WantedOp& op = wanted_.ops[i];
    const double most = amount(op.sized.work);
    auto [range, is_new] =
        ranges.try_emplace({op.kind, op.sized.work_class, op.sized.dtype}, most, most);
    range->second = {std::min(range->second.first, most), std::max(range->second.second, most)};
  }
  for (const auto& [key, range] : ranges) {
    const auto& [kind, work_class, dtype] = key;
    const double smallest =
        range.first / (pieces.empty() ? 1.0 : static_cast<double>(pieces.back()));
    const std::vector<Graph> sizes = ladder(work_class, dtype, smallest, range.second);
    for (size_t i = 0; i < sizes.size(); ++i)
      add(kind, sizes[i], i % kFew == 0 ? Need::kFewSizes : Need::kSizes);
  }
  for (int64_t each : pieces)
    for (size_t i = 0; i < count; ++i) {
      const std::string kind = wanted_.ops[i].kind;
      for (const Graph& shard : shards(Graph(wanted_.ops[i].graph), each))
        add(kind, shard, Need::kOther);
    }
  wanted_.seen = seen;
}

namespace {

ValueId tensor(Graph& graph, DType dtype, std::vector<Size> shape) {
  return add_input(graph,
                   InputKind::kBatch,
                   "x" + std::to_string(graph.inputs.size()),
                   {dtype, std::move(shape)});
}

Graph matmul(DType dtype, int64_t m, int64_t k, int64_t n) {
  Graph graph;
  Op op;
  op.name = "aten.mm.default";
  op.arguments = {ValueArgument{tensor(graph, dtype, {m, k})},
                  ValueArgument{tensor(graph, dtype, {k, n})}};
  add_op(graph, op, {{dtype, {m, n}}});
  return graph;
}

Graph pointwise(DType dtype, int64_t elements) {
  Graph graph;
  Op op;
  op.name = "aten.neg.default";
  op.arguments = {ValueArgument{tensor(graph, dtype, {elements})}};
  add_op(graph, op, {{dtype, {elements}}});
  return graph;
}

// Returns one head of width 64 over `length` positions.
Graph attention(DType dtype, int64_t batch, int64_t length) {
  Graph graph;
  Op op;
  op.name = "medley.attention.default";
  const std::vector<Size> shape{batch, 1, length, 64};
  for (int i = 0; i < 3; ++i) op.arguments.emplace_back(ValueArgument{tensor(graph, dtype, shape)});
  op.arguments.insert(op.arguments.end(), {ValueArgument{}, false, 0.125});
  add_op(graph, op, {{dtype, shape}, {DType::kF32, {batch, 1, length}}});
  return graph;
}

// Returns a 3 x 3 convolution, `channels` in and out, rows of 16 x 16.
Graph convolution(DType dtype, int64_t batch, int64_t channels) {
  Graph graph;
  Op op;
  op.name = "aten.convolution.default";
  const std::vector<Size> shape{batch, channels, 16, 16};
  const ValueId x = tensor(graph, dtype, shape),
                w = tensor(graph, dtype, {channels, channels, 3, 3});
  const std::vector<Size> ones{1, 1};
  op.arguments = {ValueArgument{x},
                  ValueArgument{w},
                  NoneArgument{},
                  ones,
                  ones,
                  ones,
                  false,
                  std::vector<Size>{0, 0},
                  Size(1)};
  add_op(graph, op, {{dtype, shape}});
  return graph;
}

}  // namespace

std::vector<Graph> ladder(WorkClass work_class, DType dtype, double least, double most) {
  std::vector<Graph> rungs;
  const int from = static_cast<int>(std::floor(std::log2(std::max(least, 1.0)))),
            to = static_cast<int>(std::ceil(std::log2(std::max(most, 1.0))));
  const int log_bytes = static_cast<int>(std::log2(bytes_per_element(dtype)));
  for (int power = from; power <= to; ++power) {
    switch (work_class) {
      case WorkClass::kMatmul: {  // 2 m k n
        const int third = (power - 1) / 3;
        if (third >= 1)
          rungs.push_back(
              matmul(dtype, int64_t{1} << (power - 1 - 2 * third), 1LL << third, 1LL << third));
        break;
      }
      case WorkClass::kMemory:  // reads and writes
        if (power > log_bytes + 1)
          rungs.push_back(pointwise(dtype, int64_t{1} << (power - 1 - log_bytes)));
        break;
      case WorkClass::kAttention: {  // 4 b s^2 64
        const int length = std::max(0, (power - 8) / 2);
        if (power >= 8)
          rungs.push_back(attention(dtype, int64_t{1} << (power - 8 - 2 * length), 1LL << length));
        break;
      }
      case WorkClass::kConvolution: {  // 18 b c^2 256
        const int channels = std::clamp((power - 12) / 3, 0, 9);
        if (power >= 12)
          rungs.push_back(
              convolution(dtype, int64_t{1} << (power - 12 - 2 * channels), 1LL << channels));
        break;
      }
      case WorkClass::kView:
        break;
    }
  }
  return rungs;
}

}  // namespace medley
