#include "medley/program/call_parts.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {
namespace {

bool is_transfer(const LoweredStage& stage, const Item& item) {
  return item.kind != Item::Kind::kOp &&
         stage.communications[at(item.index)].kind == CommunicationKind::kTransfer;
}

// Returns the parts of one micro-batch's call for a schedule entry. `late`: the function's deferred
// weight gradients have an entry of their own, after its last transfer.
std::vector<Call> parts_of(const LoweredStage& stage,
                           const Call& call,
                           const PipelineCall& entry,
                           bool late) {
  if (!late && entry.count == 1) return {call};
  const Function& function = find_function(stage, call.function);
  const int steps = static_cast<int>(function.steps.size());
  std::vector<int> cuts;
  int behind = 0;
  for (int i = 0; i < steps; ++i) {
    const auto* post = std::get_if<Post>(&function.steps[at(i)]);
    const auto* wait = std::get_if<Wait>(&function.steps[at(i)]);
    if (!post && !wait) continue;
    const Communication& communication =
        stage.communications[at(post ? post->communication : wait->communication)];
    if (communication.kind == CommunicationKind::kTransfer) behind = i + 1;
    if (!late && wait && i > 0 && function.assigns.empty() &&
        brings_to_microbatch(stage, communication))
      cuts.push_back(i);
  }
  if (late && behind > 0 && behind < steps) cuts = {behind};
  std::vector<Call> parts(cuts.size() + 1, call);
  for (size_t i = 0; i < cuts.size(); ++i) parts[i].end = parts[i + 1].first = cuts[i];
  if (!late) return parts;
  if (entry.function == PipelineFunction::kBackward) return {parts[0]};
  return {parts.begin() + 1, parts.end()};
}

}  // namespace

std::vector<bool> needed_by_transfers(const LoweredStage& stage, const std::vector<Item>& order) {
  std::vector<bool> wanted(stage.graph.values.size()), awaited(stage.communications.size());
  std::vector<bool> is_needed(order.size());
  const auto is_wanted = [&](ValueId value) { return value != kNone && wanted[at(value)]; };
  for (size_t i = order.size(); i-- > 0;) {
    const Item& item = order[i];
    const bool posts_awaited = item.kind == Item::Kind::kPost && awaited[at(item.index)];
    if (!is_transfer(stage, item) && !posts_awaited &&
        !std::ranges::any_of(definitions(stage, item), is_wanted))
      continue;
    is_needed[i] = true;
    if (item.kind == Item::Kind::kWait) awaited[at(item.index)] = true;
    for (const ValueId value : uses(stage, item))
      if (value != kNone) wanted[at(value)] = true;
  }
  return is_needed;
}

void send_first(const LoweredStage& stage, std::vector<Item>& order) {
  const std::vector<bool> is_first = needed_by_transfers(stage, order);
  std::vector<Item> sorted;
  for (const bool first : {true, false})
    for (size_t i = 0; i < order.size(); ++i)
      if (is_first[i] == first) sorted.push_back(order[i]);
  order = std::move(sorted);
}

bool brings_to_microbatch(const LoweredStage& stage, const Communication& communication) {
  return !communication.outputs.empty() &&
         std::ranges::all_of(communication.outputs, [&](ValueId value) {
           return stage.lifetimes[at(value)] == Lifetime::kMicrobatch;
         });
}

void add_calls(LoweredStage& stage, const StageOrder& order, int microbatches) {
  const auto has = [&](FunctionKind kind) {
    return std::ranges::count(stage.functions, kind, &Function::kind) > 0;
  };
  const auto add = [&](FunctionKind kind, int microbatch) {
    if (has(kind)) stage.calls.push_back({kind, microbatch});
  };
  for (int k = 0; k < kPrologues; ++k)
    for (int m = 0; m < microbatches; ++m) add(prologue_kind(k, m + 1 == microbatches), m);
  for (const PipelineCall& entry : order) {
    std::vector<std::vector<Call>> all;  // [micro-batch]
    size_t most = 0;
    for (int m = entry.microbatch; m < entry.microbatch + entry.count; ++m) {
      const bool forward = entry.function == PipelineFunction::kForward;
      const FunctionKind kind = forward                 ? FunctionKind::kForward
                                : m + 1 == microbatches ? FunctionKind::kBackwardLast
                                                        : FunctionKind::kBackward;
      if (!has(kind)) continue;
      all.push_back(parts_of(stage, {kind, m}, entry, !forward && has_weights(order)));
      most = std::max(most, all.back().size());
    }
    for (size_t part = 0; part < most; ++part)
      for (const std::vector<Call>& parts : all)
        if (part < parts.size()) stage.calls.push_back(parts[part]);
  }
  add(FunctionKind::kUpdate, 0);
}

}  // namespace medley
