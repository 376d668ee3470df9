#include "medley/cost/op_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"

namespace medley {

FlopsPerSecond sustained_rate(const DeviceKind& kind, DType dtype) {
  const auto rate = kind.sustained.find(is_floating(dtype) ? dtype : DType::kF32);
  if (rate == kind.sustained.end())
    throw Error(
        Blame::kCaller,
        fmt::format(
            "cluster: device type {}: has no sustained rate for: {}", kind.name, to_string(dtype)));
  return {rate->second};
}

Nanoseconds op_time(const DeviceKind& kind, WorkClass work_class, const Work& work, DType dtype) {
  if (work_class == WorkClass::kView || (work.flops <= 0 && work.bytes <= 0)) return {};
  const Seconds compute =
      work.flops > 0 ? Flops{work.flops} / sustained_rate(kind, dtype) : Seconds{0};
  const Seconds move{work.bytes / kind.memory_bandwidth};
  return to_nanoseconds(Seconds{kind.launch_latency} + std::max(compute, move));
}

Nanoseconds op_time(const DeviceKind& kind,
                    const Graph& graph,
                    const Op& op,
                    const std::vector<int64_t>& symbols) {
  const OpWork work = op_work(graph, op, symbols, kind.bf16_as);
  return op_time(kind, work.work_class, work.work, work.dtype);
}

}  // namespace medley
