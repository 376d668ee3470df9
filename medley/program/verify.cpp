#include <fmt/format.h>

#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/program/calls.h"
#include "medley/program/verify_parts.h"

namespace medley {
namespace {

void verify_shape(const Program& program, size_t s) {
  const LoweredStage& stage = program.stages[s];
  const std::string place = stage_name(s);
  const size_t values = stage.graph.values.size();
  expect_program(stage.lifetimes.size() == values,
                 place,
                 "found {} lifetimes, expected one for each of {} values",
                 stage.lifetimes.size(),
                 values);
  expect_program(stage.inputs.size() == stage.graph.inputs.size(),
                 place,
                 "found {} places of inputs, expected {}",
                 stage.inputs.size(),
                 stage.graph.inputs.size());
  const auto devices = at(along(stage.mesh, kWholeMesh).count);
  expect_program(stage.devices.size() == devices,
                 place,
                 "found {} devices, expected {} of its mesh",
                 stage.devices.size(),
                 devices);
  expect_program(stage.bf16_as.empty() || stage.bf16_as.size() == devices,
                 place,
                 "found {} types in the place of bf16, expected one for each of {} "
                 "devices, or none",
                 stage.bf16_as.size(),
                 devices);
  expect_program(stage.workspaces.empty() || stage.workspaces.size() == devices,
                 place,
                 "found {} workspaces, expected one for each of {} devices, or none",
                 stage.workspaces.size(),
                 devices);
  expect_program(!stage.tables.empty(), place, "found no micro-batch, expected one at least");
  for (size_t m = 0; m < stage.tables.size(); ++m) {
    const auto refuse = [&](const std::string& what) {
      refuse_program(fmt::format("{}: table of micro-batch {}", place, m), what);
    };
    if (stage.tables[m].size() != devices)
      refuse(fmt::format("found {} devices, expected {}", stage.tables[m].size(), devices));
    for (const std::vector<int64_t>& symbols : stage.tables[m]) {
      if (symbols.size() != stage.graph.symbols.size())
        refuse(fmt::format(
            "found {} symbols, expected {}", symbols.size(), stage.graph.symbols.size()));
      for (size_t i = 0; i < symbols.size(); ++i)
        if (symbols[i] < 0)
          refuse(fmt::format(
              "found {} for \"{}\", expected no less than 0", symbols[i], stage.graph.symbols[i]));
    }
  }
}

// Checks that a stage's micro-batches are consecutive rows of the global batch from `row` on, the
// end of the previous pipeline. Returns its own end. Hand-made programs of tests have no rows.
int64_t verify_microbatches(const Program& program, size_t s, int64_t row) {
  if (program.global_batch == 0) return 0;
  const LoweredStage& stage = program.stages[s];
  for (size_t m = 0; m < stage.tables.size(); ++m) {
    const auto expect = [&](size_t device, const Size& size, int64_t expected, const char* what) {
      const int64_t found = evaluate(size, stage.tables[m][device]);
      if (found != expected)
        refuse_program(
            fmt::format("{}: table of micro-batch {}: device {}", stage_name(s), m, device),
            fmt::format("found {} {}, expected {}", what, found, expected));
    };
    const int64_t rows = evaluate(SymbolTable::rows(), stage.tables[m][0]);
    for (size_t device = 0; device < stage.tables[m].size(); ++device) {
      expect(device, SymbolTable::rows(), rows, "rows");
      expect(device, SymbolTable::first_row(), row, "first row");
      expect(device, SymbolTable::batch(), program.global_batch, "rows of the global batch");
    }
    row += rows;
  }
  return row;
}

// Checks that pipelines and their rows are consecutive, and that the stages of each have the same.
void verify_pipelines(const Program& program) {
  int64_t begin = 0, end = 0;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const LoweredStage& stage = program.stages[s];
    const int before = s > 0 ? program.stages[s - 1].pipeline : -1;
    expect_program(stage.pipeline == before + 1 || (stage.pipeline == before && s > 0),
                   stage_name(s),
                   "found pipeline {} after {}",
                   stage.pipeline,
                   before);
    if (stage.pipeline != before) {
      begin = end;
      end = verify_microbatches(program, s, begin);
      continue;
    }
    const int64_t own = verify_microbatches(program, s, begin);
    expect_program(own == end,
                   stage_name(s),
                   "found {} rows in all micro-batches, expected {} as in the stage before",
                   own - begin,
                   end - begin);
    const size_t microbatches = program.stages[s - 1].tables.size();
    expect_program(stage.tables.size() == microbatches,
                   stage_name(s),
                   "found {} micro-batches, expected {} as in the stage before",
                   stage.tables.size(),
                   microbatches);
  }
  expect_program(end == program.global_batch,
                 stage_name(program.stages.size() - 1),
                 "found {} rows in all micro-batches, expected the {} of the global batch",
                 end,
                 program.global_batch);
}

}  // namespace

void refuse_program(const std::string& place, const std::string& what) {
  throw Error(Blame::kUs, fmt::format("program: {}: {}", place, what));
}

std::string stage_name(size_t stage) { return fmt::format("stage {}", stage); }

void verify(const Program& program) {
  if (program.stages.empty()) refuse_program("stages", "found none, expected one at least");
  std::set<int> devices;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    verify_shape(program, s);
    for (int device : program.stages[s].devices)
      expect_program(devices.insert(device).second,
                     stage_name(s),
                     "found device {} a second time, expected each once",
                     device);
  }
  verify_pipelines(program);
  for_each_in_parallel(program.stages.size(), [&](size_t s) { verify_values(program, s); });
  verify_messages(program);
  for_each_in_parallel(2, [&](size_t part) {
    part == 0 ? verify_gradient_syncs(program) : verify_progress(program);
  });
}

}  // namespace medley
