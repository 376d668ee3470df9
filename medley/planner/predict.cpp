#include "medley/planner/predict.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "medley/base/error.h"
#include "medley/cost/op_time.h"
#include "medley/network/collectives.h"
#include "medley/network/topology.h"

namespace medley {
namespace {

CollectiveKind collective_kind(CommunicationKind kind) {
  switch (kind) {
    case CommunicationKind::kAllReduce:
      return CollectiveKind::kAllReduce;
    case CommunicationKind::kAllGather:
      return CollectiveKind::kAllGather;
    case CommunicationKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case CommunicationKind::kAllToAll:
      return CollectiveKind::kAllToAll;
  }
  MEDLEY_CHECK(!"a kind");
  return CollectiveKind::kAllReduce;
}

// Follows the calls for all devices at once: they share their order.
class Predictor {
 public:
  Predictor(const LoweredStage& stage, const Cluster& cluster)
      : stage_(stage),
        cluster_(cluster),
        topology_(cluster),
        clocks_(stage.devices.size()),
        done_(stage.communications.size()) {
    result_.computes.resize(stage.devices.size());
  }

  Prediction run() {
    for (const Call& call : stage_.calls)
      for (const Function& function : stage_.functions)
        if (function.kind == call.function)
          for (const Step& step : function.steps) follow(step, call.microbatch);
    result_.step = *std::max_element(clocks_.begin(), clocks_.end());
    return std::move(result_);
  }

 private:
  void follow(const Step& step, int microbatch) {
    if (const auto* segment = std::get_if<Segment>(&step)) {
      for (size_t d = 0; d < clocks_.size(); ++d) {
        const Nanoseconds time = segment_time(*segment, table(microbatch, d), d);
        clocks_[d] += time;
        result_.computes[d] += time;
      }
    } else if (const auto* post = std::get_if<Post>(&step)) {
      const Nanoseconds posted = *std::max_element(clocks_.begin(), clocks_.end());
      const Nanoseconds time = communication_time(post->communication, microbatch);
      network_free_ = std::max(network_free_, posted) + time;
      result_.communicates += time;
      done_[static_cast<size_t>(post->communication)] = network_free_;
    } else if (const auto* wait = std::get_if<Wait>(&step)) {
      for (Nanoseconds& clock : clocks_)
        clock = std::max(clock, done_[static_cast<size_t>(wait->communication)]);
    }
  }

  const std::vector<int64_t>& table(int microbatch, size_t device) const {
    return stage_.tables[static_cast<size_t>(microbatch)][device];
  }

  // Equal devices with equal lengths take equally long.
  Nanoseconds segment_time(const Segment& segment,
                           const std::vector<int64_t>& symbols,
                           size_t device) {
    const DeviceKind& kind = cluster_.kind(stage_.devices[device]);
    const auto [time, is_new] = segment_times_.try_emplace({&segment, kind.name, symbols});
    if (is_new) time->second = ops_time(kind, stage_.graph, segment.ops, symbols);
    return time->second;
  }

  int64_t element_bytes(const Communication& communication) const {
    const ValueId value = communication.inputs.at(0);
    return bytes_per_element(stage_.graph.values[static_cast<size_t>(value)].type.dtype);
  }

  std::vector<int64_t> lengths(const Communication& communication, int microbatch) const {
    const size_t count = clocks_.size();
    if (communication.kind == CommunicationKind::kAllReduce) {
      int64_t bytes = 0;
      for (ValueId value : communication.inputs)
        bytes +=
            num_bytes(stage_.graph.values[static_cast<size_t>(value)].type, table(microbatch, 0));
      return {bytes};
    }
    const int64_t element = element_bytes(communication);
    const bool all_to_all = communication.kind == CommunicationKind::kAllToAll;
    const std::vector<Size>& sizes = communication.kind == CommunicationKind::kAllGather
                                         ? communication.receive
                                         : communication.send;
    std::vector<int64_t> result;
    for (size_t from = 0; from < (all_to_all ? count : 1); ++from)
      for (const Size& size : sizes)
        result.push_back(element * evaluate(size, table(microbatch, from)));
    return result;
  }

  Nanoseconds communication_time(int index, int microbatch) {
    if (clocks_.size() == 1) return {};
    const Communication& communication = stage_.communications[static_cast<size_t>(index)];
    Collective collective{collective_kind(communication.kind),
                          stage_.devices,
                          lengths(communication, microbatch),
                          element_bytes(communication)};
    const auto [time, is_new] = communication_times_.try_emplace({index, collective.lengths});
    if (is_new) time->second = cheapest(collective, topology_).time;
    return time->second;
  }

  const LoweredStage& stage_;
  const Cluster& cluster_;
  const Topology topology_;
  std::vector<Nanoseconds> clocks_;  // [device of the mesh]
  std::vector<Nanoseconds> done_;    // [communication]
  Nanoseconds network_free_;
  std::map<std::tuple<const Segment*, std::string, std::vector<int64_t>>, Nanoseconds>
      segment_times_;
  std::map<std::pair<int, std::vector<int64_t>>, Nanoseconds> communication_times_;
  Prediction result_;
};

}  // namespace

Prediction predict(const LoweredStage& stage, const Cluster& cluster) {
  return Predictor(stage, cluster).run();
}

}  // namespace medley
