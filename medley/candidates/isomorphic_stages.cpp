#include "medley/candidates/isomorphic_stages.h"

namespace medley {
namespace {

// Returns false if it already has another name.
bool add(std::map<std::string, std::string>& names,
         const std::string& from,
         const std::string& to) {
  return names.try_emplace(from, to).first->second == to;
}

bool are_isomorphic(const Op& a, const Op& b) {
  return a.name == b.name && a.phase == b.phase && a.results == b.results &&
         a.arguments == b.arguments;
}

Choices renamed(const Choices& choices, const std::map<std::string, std::string>& names) {
  Choices result;
  for (const auto& [name, text] : choices) result[names.at(name)] = text;
  return result;
}

}  // namespace

std::optional<Renaming> renaming(const Prepared& from, const Prepared& to) {
  const Graph &a = from.graph, &b = to.graph;
  if (a.values != b.values || a.ops.size() != b.ops.size() || a.inputs.size() != b.inputs.size() ||
      a.outputs.size() != b.outputs.size() ||
      !std::ranges::equal(from.roles, to.roles, {}, &OpRole::recomputed, &OpRole::recomputed) ||
      from.gradient_norm != to.gradient_norm)
    return std::nullopt;
  Renaming names;
  for (size_t i = 0; i < a.inputs.size(); ++i)
    if (a.inputs[i].kind != b.inputs[i].kind || a.inputs[i].value != b.inputs[i].value ||
        !add(names.inputs, a.inputs[i].name, b.inputs[i].name))
      return std::nullopt;
  for (size_t i = 0; i < a.ops.size(); ++i)
    if (!are_isomorphic(a.ops[i], b.ops[i]) || !add(names.ops, from.names[i], to.names[i]))
      return std::nullopt;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const Output &one = a.outputs[i], &two = b.outputs[i];
    if (one.kind != two.kind || one.value != two.value) return std::nullopt;
    const auto input = names.inputs.find(one.name);
    if (input != names.inputs.end() && input->second != two.name) return std::nullopt;
  }
  return names;
}

Stage renamed(Stage stage, const Renaming& names) {
  stage.placements = renamed(stage.placements, names.inputs);
  stage.batch = renamed(stage.batch, names.inputs);
  stage.updates = renamed(stage.updates, names.inputs);
  stage.ops = renamed(stage.ops, names.ops);
  return stage;
}

}  // namespace medley
