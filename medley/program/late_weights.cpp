#include "medley/program/late_weights.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {
namespace {

bool is_transfer(const LoweredStage& stage, int communication) {
  return stage.communications[at(communication)].kind == CommunicationKind::kTransfer;
}

}  // namespace

std::vector<bool> needed_by_transfers(const LoweredStage& stage, const std::vector<Item>& order) {
  std::vector<bool> wanted(stage.graph.values.size()), awaited(stage.communications.size());
  std::vector<bool> is_needed(order.size());
  const auto is_wanted = [&](ValueId value) { return value != kNone && wanted[at(value)]; };
  for (size_t i = order.size(); i-- > 0;) {
    const Item& item = order[i];
    const bool transfer = item.kind != Item::Kind::kOp && is_transfer(stage, item.index);
    const bool posts_awaited = item.kind == Item::Kind::kPost && awaited[at(item.index)];
    if (!transfer && !posts_awaited && !std::ranges::any_of(definitions(stage, item), is_wanted))
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

void add_part(LoweredStage& stage, FunctionKind kind, const PipelineCall& call) {
  const std::vector<Step>& steps = find_function(stage, kind).steps;
  size_t behind = steps.size();
  const auto is_of_transfer = [&](const Step& step) {
    const auto* post = std::get_if<Post>(&step);
    const auto* wait = std::get_if<Wait>(&step);
    return (post && is_transfer(stage, post->communication)) ||
           (wait && is_transfer(stage, wait->communication));
  };
  while (behind > 0 && !is_of_transfer(steps[behind - 1])) --behind;
  const bool is_whole = behind == 0 || behind == steps.size();
  const bool is_first = call.function == PipelineFunction::kBackward;
  if (is_whole && !is_first) return;
  Call& part = stage.calls.emplace_back(Call{kind, call.microbatch});
  if (is_whole) return;
  (is_first ? part.end : part.first) = static_cast<int>(behind);
}

}  // namespace medley
