#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/at.h"
#include "medley/base/sha256.h"
#include "medley/graph/text.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

std::string ids(const std::vector<ValueId>& values) {
  std::string text;
  for (ValueId value : values) text += fmt::format("{}%{}", text.empty() ? "" : " ", value);
  return text;
}

// Returns each tensor's cells: elements, givers, takers.
std::string cells(const GradientSync& sync) {
  std::string text;
  for (const auto& tensor : sync.tensors) {
    text += text.empty() ? " cells [" : "; ";
    for (const SyncCell& cell : *tensor) {
      text += fmt::format("{}{}:", &cell == tensor->data() ? "" : ", ", cell.length);
      for (const SyncEnd& end : cell.from) text += fmt::format(" {}", end.member);
      text += " ->";
      for (const SyncEnd& end : cell.to) text += fmt::format(" {}@{}", end.member, end.runs.start);
    }
  }
  return text.empty() ? text : text + "]";
}

void print_item(std::string& out,
                const LoweredStage& stage,
                const Item& item,
                const std::vector<ValueId>& dies) {
  const std::string frees = dies.empty() ? "\n" : fmt::format(" frees {}\n", ids(dies));
  if (item.kind == Item::Kind::kOp) {
    out += fmt::format("    op {}{}", item.index, frees);
    return;
  }
  const Communication& communication = stage.communications[at(item.index)];
  if (item.kind == Item::Kind::kPost) {
    out += fmt::format("    post {} \"{}\" {} -> {}",
                       item.index,
                       communication.name,
                       ids(communication.inputs),
                       ids(communication.outputs));
    const auto sizes = [&](const std::vector<Size>& all) {
      std::string text;
      for (const Size& size : all)
        text += (text.empty() ? "" : ", ") + to_string(size, stage.graph.symbols);
      return text;
    };
    if (!communication.send.empty()) out += fmt::format(" send [{}]", sizes(communication.send));
    if (!communication.receive.empty())
      out += fmt::format(" receive [{}]", sizes(communication.receive));
    if (communication.sync) out += cells(*communication.sync);
    if (communication.axis != 0) out += fmt::format(" axis {}", communication.axis);
    if (communication.lane >= 0)
      out += fmt::format(" lane {} depth {}", communication.lane, communication.depth);
    if (!communication.devices.empty())
      out += fmt::format(" devices [{}]", fmt::join(communication.devices, ", "));
    out += frees;
    return;
  }
  out += fmt::format("    wait {}", item.index);
  if (only_receives(communication))
    out += fmt::format(" \"{}\" -> {} lane {} depth {} devices [{}]",
                       communication.name,
                       ids(communication.outputs),
                       communication.lane,
                       communication.depth,
                       fmt::join(communication.devices, ", "));
  out += "\n";
}

}  // namespace

std::string print(const Program& program) {
  std::string out = fmt::format("medley-program 1\ngraph {}\nplan {}\nglobal_batch {}\n",
                                program.graph_hash,
                                program.plan_hash,
                                program.global_batch);
  if (program.microbatches_are_batches) out += "micro-batches are batches\n";
  for (const LoweredStage& stage : program.stages) {
    out += fmt::format("stage devices [{}] mesh [{}]",
                       fmt::join(stage.devices, ", "),
                       fmt::join(stage.mesh, ", "));
    out += stage.pipeline == 0 ? "" : fmt::format(" pipeline {}", stage.pipeline);
    for (size_t d = 0; d < stage.bf16_as.size(); ++d)
      out += fmt::format("{}{}", d == 0 ? " bf16 as " : ", ", to_string(stage.bf16_as[d]));
    out += "\n";
    out += print(stage.graph);
    for (const Function& function : stage.functions) {
      out += fmt::format("  function {}\n", name(function.kind));
      for_each_item(function.steps, [&](const Item& item, const std::vector<ValueId>& dies) {
        print_item(out, stage, item, dies);
      });
      for (const Assign& assign : function.assigns)
        out += fmt::format("    assign %{} to %{}\n", assign.from, assign.to);
    }
    for (const auto& [name, value] : stage.metrics)
      out += fmt::format("  metric \"{}\" %{}\n", name, value);
    for (const Call& call : stage.calls) {
      out += fmt::format("  call {} {}", name(call.function), call.microbatch);
      if (!call.begins() || !call.ends())
        out += fmt::format(
            " steps {}{}", call.first, call.ends() ? " on" : fmt::format(" to {}", call.end - 1));
      out += "\n";
    }
    for (size_t m = 0; m < stage.tables.size(); ++m)
      for (size_t d = 0; d < stage.tables[m].size(); ++d)
        out += fmt::format("  table {} {} [{}]\n", m, d, fmt::join(stage.tables[m][d], ", "));
  }
  return out;
}

std::string hash(const Program& program) { return sha256_hex(print(program)); }

}  // namespace medley
