#include "medley/program/fewer_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"

namespace medley {
namespace {

// Returns the planned rows of all micro-batches, pipeline after pipeline.
std::vector<double> planned_rows(const Program& program) {
  std::vector<double> rows;
  int pipeline = -1;
  for (const LoweredStage& stage : program.stages) {
    if (stage.pipeline == pipeline) continue;
    pipeline = stage.pipeline;
    for (const Microbatch& microbatch : stage.microbatches)
      rows.push_back(static_cast<double>(microbatch.rows));
  }
  return rows;
}

}  // namespace

Program with_rows(const Program& planned, int64_t rows) {
  MEDLEY_CHECK(rows > 0 && rows <= planned.global_batch);
  Program program = planned;
  program.global_batch = rows;
  const std::vector<int64_t> counts = apportion(rows, planned_rows(planned));
  if (planned.microbatches_are_batches && std::ranges::count(counts, 0) > 0)
    throw Error(Blame::kCaller,
                fmt::format("batch: found {} rows, expected one at least for each of {} "
                            "micro-batches: the model learns from each as from a batch",
                            rows,
                            counts.size()));
  size_t first = 0;  // micro-batch of the pipeline, over all
  int64_t first_row = 0, row = 0;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    LoweredStage& stage = program.stages[s];
    if (s > 0 && stage.pipeline != program.stages[s - 1].pipeline) {
      first += program.stages[s - 1].microbatches.size();
      first_row = row;
    }
    row = first_row;
    for (size_t m = 0; m < stage.microbatches.size(); ++m) {
      Microbatch& microbatch = stage.microbatches[m];
      microbatch = of_fewer_rows(microbatch, counts[first + m]);
      stage.tables[m] = stage.symbols.tables(microbatch, m, row, rows);
      row += microbatch.rows;
    }
  }
  verify(program);
  return program;
}

}  // namespace medley
