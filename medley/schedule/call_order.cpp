#include "medley/schedule/call_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "medley/base/error.h"

namespace medley {
std::string to_string(const PipelineCall& call) {
  constexpr std::string_view kLetters = "FBW";
  const std::string text =
      kLetters[static_cast<size_t>(call.function)] + std::to_string(call.microbatch);
  return call.count == 1 ? text : fmt::format("{}-{}", text, call.microbatch + call.count - 1);
}

std::string to_string(const StageOrder& order) {
  std::string text;
  for (const PipelineCall& call : order) text += (text.empty() ? "" : " ") + to_string(call);
  return text;
}

PipelineOrder order_calls(const std::vector<int>& in_flight, int microbatches) {
  MEDLEY_CHECK(microbatches >= 1);
  PipelineOrder order;
  for (size_t stage = 0; stage < in_flight.size(); ++stage) {
    const int count = in_flight[stage];
    if (count < 1 || (stage > 0 && count > in_flight[stage - 1]))
      throw Error(Blame::kCaller,
                  fmt::format("in_flight: stage {}: found {}, expected {}",
                              stage,
                              count,
                              count < 1 ? "at least 1" : "no more than the stage before"));
    const int warm_up = std::min(count, microbatches) - 1;
    StageOrder& calls = order.emplace_back();
    calls.reserve(static_cast<size_t>(microbatches) * 2);
    for (int m = 0; m < warm_up; ++m) calls.push_back(forward(m));
    for (int m = warm_up; m < microbatches; ++m) {
      calls.push_back(forward(m));
      calls.push_back(backward(m - warm_up));
    }
    for (int m = microbatches - warm_up; m < microbatches; ++m) calls.push_back(backward(m));
  }
  return order;
}

PipelineOrder with_deferred_weights(PipelineOrder order, const std::vector<int>& late) {
  MEDLEY_CHECK_EQ(late.size(), order.size());
  for (size_t stage = 0; stage < order.size(); ++stage) {
    MEDLEY_CHECK(late[stage] >= 0);
    if (late[stage] == 0) continue;
    const StageOrder whole = std::exchange(order[stage], {});
    int next = 0;  // micro-batch of the next weight gradients
    for (const PipelineCall& call : whole) {
      order[stage].push_back(call);
      if (call.function == PipelineFunction::kBackward && call.microbatch - next + 1 == late[stage])
        order[stage].push_back(weights(next++));
    }
    while (next < static_cast<int>(whole.size()) / 2) order[stage].push_back(weights(next++));
  }
  return order;
}

StageOrder order_interleaved(int of, int microbatches) {
  MEDLEY_CHECK(of >= 1 && microbatches >= 1);
  StageOrder order;
  for (int first = 0; first < microbatches; first += of)
    for (const PipelineFunction function :
         {PipelineFunction::kForward, PipelineFunction::kBackward})
      order.push_back({function, first, std::min(of, microbatches - first)});
  return order;
}

std::vector<int> capped(std::vector<int> in_flight, const std::vector<int>& limits) {
  if (limits.empty()) return in_flight;
  MEDLEY_CHECK_EQ(limits.size(), in_flight.size());
  for (size_t stage = 0; stage < in_flight.size(); ++stage) {
    if (limits[stage] < 1)
      throw Error(Blame::kCaller,
                  fmt::format("stage {}: found memory for {} micro-batches, expected at least 1",
                              stage,
                              limits[stage]));
    in_flight[stage] = std::min(in_flight[stage], limits[stage]);
    if (stage > 0) in_flight[stage] = std::min(in_flight[stage], in_flight[stage - 1]);
  }
  return in_flight;
}

std::vector<int> peak_in_flight(const PipelineOrder& order) {
  std::vector<int> peaks;
  for (const StageOrder& calls : order) {
    int now = 0, peak = 0;
    for (const PipelineCall& call : calls) {
      if (call.function == PipelineFunction::kForward) now += call.count;
      if (call.function == PipelineFunction::kBackward) now -= call.count;
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

int message_slots(int earlier, int later) {
  return earlier > later ? earlier - later + 1 : earlier;
}

std::vector<int> message_slots(const std::vector<int>& in_flight) {
  std::vector<int> slots;
  for (size_t b = 0; b + 1 < in_flight.size(); ++b)
    slots.push_back(message_slots(in_flight[b], in_flight[b + 1]));
  return slots;
}

}  // namespace medley
