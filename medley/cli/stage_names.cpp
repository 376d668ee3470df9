#include "medley/cli/stage_names.h"

#include <fmt/format.h>

#include "medley/base/at.h"

namespace medley {
namespace {

// Returns names for `stages` stages per pipeline.
std::vector<std::string> names(const std::vector<size_t>& stages) {
  std::vector<std::string> result;
  for (size_t p = 0; p < stages.size(); ++p)
    for (size_t s = 0; s < stages[p]; ++s)
      result.push_back(stages.size() == 1 ? fmt::format("{}", s) : fmt::format("{}/{}", p, s));
  return result;
}

}  // namespace

std::vector<std::string> stage_names(const Plan& plan) {
  std::vector<size_t> stages;
  for (const Pipeline& pipeline : plan.pipelines) stages.push_back(pipeline.stages.size());
  return names(stages);
}

std::vector<std::string> stage_names(const Program& program) {
  std::vector<size_t> stages;
  for (const LoweredStage& stage : program.stages) {
    stages.resize(at(stage.pipeline) + 1);
    ++stages.back();
  }
  return names(stages);
}

std::string kinds_text(const std::map<std::string, size_t>& kinds) {
  std::string text;
  for (const auto& [kind, count] : kinds)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  return text;
}

}  // namespace medley
