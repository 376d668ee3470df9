#include <algorithm>
#include <nlohmann/json.hpp>

#include "medley/base/json_string.h"
#include "medley/base/sha256.h"
#include "medley/plan/plan.h"

namespace medley {
namespace {

constexpr size_t kLine = 100;

// A JSON value that is not printed yet: scalars as text, containers with their members in order.
struct Node {
  char bracket = 0;  // '{', '[' or 0 for a scalar
  std::string scalar;
  std::vector<Node> members;
  std::string key;  // of a member of an object

  void add(const std::string& name, Node node) {
    node.key = name;
    members.push_back(std::move(node));
  }
  void add(Node node) { members.push_back(std::move(node)); }
};

Node object() { return {'{', "", {}, {}}; }
Node list() { return {'[', "", {}, {}}; }
Node scalar(const std::string& text) { return {0, json_string(text), {}, {}}; }
Node scalar(int64_t value) { return {0, std::to_string(value), {}, {}}; }
Node scalar(double value) { return {0, nlohmann::json(value).dump(), {}, {}}; }

template <typename T>
Node list(const std::vector<T>& values) {
  Node node = list();
  for (const T& value : values) node.add(scalar(value));
  return node;
}

Node object(const Choices& choices) {
  Node node = object();
  for (const auto& [key, text] : choices) node.add(key, scalar(text));
  return node;
}

std::string one_line(const Node& node) {
  if (!node.bracket) return node.scalar;
  std::string out(1, node.bracket);
  for (const Node& member : node.members) {
    if (out.size() > 1) out += ", ";
    if (node.bracket == '{') out += json_string(member.key) + ": ";
    out += one_line(member);
  }
  return out + (node.bracket == '{' ? '}' : ']');
}

bool has_containers(const Node& node) {
  return std::any_of(node.members.begin(), node.members.end(), [](const Node& member) {
    return member.bracket != 0;
  });
}

// Lists of scalars, and objects of scalars and such lists.
bool is_flat(const Node& node) {
  if (node.bracket == '[') return !has_containers(node);
  return std::all_of(node.members.begin(), node.members.end(), [](const Node& member) {
    return !member.bracket || !has_containers(member);
  });
}

// What is flat stands on one line if it fits there; `before` is what the line holds already.
void print(const Node& node, size_t indent, size_t before, std::string& out) {
  if (is_flat(node)) {
    const std::string line = one_line(node);
    if (!node.bracket || before + line.size() < kLine) {
      out += line;
      return;
    }
  }
  out += node.bracket;
  const char* separator = "\n";
  for (const Node& member : node.members) {
    out += separator + std::string(indent + 2, ' ');
    const std::string label = node.bracket == '{' ? json_string(member.key) + ": " : "";
    out += label;
    print(member, indent + 2, indent + 2 + label.size(), out);
    separator = ",\n";
  }
  out += "\n" + std::string(indent, ' ') + (node.bracket == '{' ? '}' : ']');
}

Node to_node(const Part& part) {
  Node node = object();
  node.add("name", scalar(part.name));
  if (part.shares.empty()) {
    node.add("lengths", list(part.lengths));
  } else {
    node.add("shares", list(part.shares));
  }
  return node;
}

Node to_node(const Microbatch& microbatch) {
  Node node = object();
  node.add("rows", scalar(microbatch.rows));
  if (!microbatch.lengths.empty()) node.add("lengths", list(microbatch.lengths));
  return node;
}

Node to_node(const Stage& stage) {
  Node mesh = object();
  mesh.add("axes", list(stage.mesh.axes));
  mesh.add("shape", list(stage.mesh.shape));
  mesh.add("devices", list(stage.mesh.devices));
  Node node = object();
  if (!stage.first.empty()) node.add("first", scalar(stage.first));
  node.add("mesh", std::move(mesh));
  if (!stage.rows.empty()) node.add("rows", list(stage.rows));
  if (!stage.states.empty()) node.add("states", object(stage.states));
  if (!stage.batch.empty()) node.add("batch", object(stage.batch));
  if (!stage.ops.empty()) node.add("ops", object(stage.ops));
  if (!stage.updates.empty()) node.add("updates", object(stage.updates));
  if (stage.recompute != Stage().recompute) node.add("recompute", scalar(stage.recompute));
  return node;
}

Node to_node(const Pipeline& pipeline);

template <typename T>
Node to_list(const std::vector<T>& values) {
  Node node = list();
  for (const T& value : values) node.add(to_node(value));
  return node;
}

Node to_node(const Pipeline& pipeline) {
  Node node = object();
  if (pipeline.schedule != Pipeline().schedule) node.add("schedule", scalar(pipeline.schedule));
  for (const ScheduleField& field : schedule_fields())
    if (!is_default(pipeline, field))
      node.add(std::string(field.key),
               field.counts ? list(pipeline.*field.counts) : scalar(pipeline.*field.number));
  node.add("microbatches", to_list(pipeline.microbatches));
  node.add("stages", to_list(pipeline.stages));
  return node;
}

}  // namespace

std::string print(const Plan& plan) {
  Node node = object();
  node.add("format", scalar(std::string("medley-plan")));
  node.add("version", scalar(int64_t{1}));
  if (!plan.strategy.empty()) node.add("strategy", scalar(plan.strategy));
  if (!plan.graph_hash.empty()) node.add("graph_hash", scalar(plan.graph_hash));
  if (!plan.cluster_hash.empty()) node.add("cluster_hash", scalar(plan.cluster_hash));
  node.add("global_batch", scalar(plan.global_batch));
  if (plan.loss_over_microbatches) node.add("loss_over", scalar(std::string(kLossOver[1])));
  if (plan.survive > 0) node.add("survive", scalar(int64_t{plan.survive}));
  if (plan.bound) {
    Node bound = object();
    bound.add("step_ns", scalar(plan.bound->step_ns));
    bound.add("least_ns", scalar(plan.bound->least_ns));
    node.add("bound", std::move(bound));
  }
  if (!plan.parts.empty()) node.add("parts", to_list(plan.parts));
  if (!plan.owners.empty()) node.add("owners", object(plan.owners));
  if (!plan.bf16_as.empty()) {
    Node types = object();
    for (const auto& [kind, dtype] : plan.bf16_as)
      types.add(kind, scalar(std::string(to_string(dtype))));
    node.add("bf16_as", std::move(types));
  }
  node.add("pipelines", to_list(plan.pipelines));
  std::string out;
  print(node, 0, 0, out);
  return out + "\n";
}

std::string hash(const Plan& plan) { return sha256_hex(print(plan)); }

}  // namespace medley
