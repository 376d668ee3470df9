#pragma once

// Data parallelism: the whole model on every device, each with its own number of rows. The plan
// says only that: one mesh of one axis, and micro-batches with lengths. What becomes of every op
// follows from complete(), as for any plan.

#include <optional>

#include "medley/synthesis/request.h"
#include "medley/synthesis/row_time.h"

namespace medley {

// All require costs and an analysis in the request.
Outcome data_parallel_even(const Request& request);
// Rows such that the slowest device is done as early as possible.
Outcome data_parallel_proportional(const Request& request);

// Divides the rows of each device over `microbatches`, as evenly as integers can, so that no
// micro-batch is empty: what does not divide goes to one micro-batch after the other, over all
// devices in turn.
// Requires: 1 <= microbatches <= the sum of all rows.
std::vector<Microbatch> cut_into_microbatches(const std::vector<int64_t>& rows,
                                              int64_t microbatches);

// Rows in a step of each device of the first axis; of all of them, as one device, where the batch
// is replicated. Requires: one pipeline.
std::vector<int64_t> step_rows(const Plan& plan);
// The plan with these rows in so many micro-batches, replicated if it was.
Plan with_rows(Plan plan, const std::vector<int64_t>& rows, int64_t microbatches);

// Whether each device has room for all parameters, without which no data parallelism fits.
bool has_room_for_replicas(const Request& request);

// Why the request cannot have as many micro-batches as it asks for, if it cannot: rows meet.
std::optional<Infeasible> rows_meet(const Request& request);

// Of each device, read off around an even share of a micro-batch.
std::vector<RowTime> row_times(const Request& request, const std::vector<int>& devices);
// Rows per second of each device when it computes all of the model; of the fastest 1.
std::vector<double> speeds_of(const Request& request, const std::vector<int>& devices);
// Rows of a step on each device, as equal as integers can be.
std::vector<int64_t> even_rows(const Request& request, const std::vector<int>& devices);
// The same such that the slowest is done as early as possible.
std::vector<int64_t> proportional_rows(const Request& request, const std::vector<int>& devices);
// One mesh of one axis, and what each device has of every micro-batch; everything else open.
Plan plan_of_rows(std::vector<std::string> devices,
                  const std::vector<std::vector<int64_t>>& microbatches);
// What a plan for a request says but for its pipelines.
Plan empty_plan(const Request& request);
// One mesh of one axis for a request, these rows cut into micro-batches.
Plan empty_plan(const Request& request,
                const std::vector<int>& devices,
                const std::vector<int64_t>& rows,
                int64_t microbatches);

}  // namespace medley
