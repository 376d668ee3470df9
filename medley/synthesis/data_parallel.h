#pragma once

// Data parallelism: the whole model on every device, each with its own number of rows. The plan has
// only a 1-D mesh and micro-batches with lengths; complete() derives the ops as for any plan.

#include <optional>

#include "medley/synthesis/request.h"
#include "medley/synthesis/row_time.h"

namespace medley {

// All require costs and an analysis in the request.
Outcome data_parallel_even(const Request& request);
// Chooses rows that minimise the slowest device's time.
Outcome data_parallel_proportional(const Request& request);

// Divides the rows of each device over `microbatches`, as evenly as integers can, with no
// micro-batch empty. Remainders go to one micro-batch after another, over all devices in turn.
// Requires: 1 <= microbatches <= the sum of all rows.
std::vector<Microbatch> cut_into_microbatches(const std::vector<int64_t>& rows,
                                              int64_t microbatches);

// Returns rows per step of each device of the first axis; one entry with all rows if the batch is
// replicated. Requires: one pipeline.
std::vector<int64_t> step_rows(const Plan& plan);
// Returns the plan with these rows in `microbatches`; a replicated batch stays replicated.
Plan with_rows(Plan plan, const std::vector<int64_t>& rows, int64_t microbatches);

// Returns whether all parameters fit on each device, as data parallelism needs.
bool has_room_for_replicas(const Request& request);

// Returns the reason if rows forbid as many micro-batches as requested: cross-sample dependence.
std::optional<Infeasible> refuse_cross_sample(const Request& request);

// Returns the coefficients of each device around an even share of a micro-batch.
std::vector<RowTime> row_times(const Request& request, const std::vector<int>& devices);
// Returns rows per second of each device for the whole model, relative to the fastest.
std::vector<double> speeds_of(const Request& request, const std::vector<int>& devices);
// Returns rows per step of each device, as equal as integers can be.
std::vector<int64_t> even_rows(const Request& request, const std::vector<int>& devices);
// Returns rows that minimise the slowest device's time.
std::vector<int64_t> proportional_rows(const Request& request, const std::vector<int>& devices);
// Returns a plan with a 1-D mesh and each device's rows per micro-batch, all else open.
Plan plan_of_rows(std::vector<std::string> devices,
                  const std::vector<std::vector<int64_t>>& microbatches);
// Returns the plan for a request without pipelines.
Plan empty_plan(const Request& request);
// Returns a plan with a 1-D mesh for a request, with rows cut into micro-batches.
Plan empty_plan(const Request& request,
                const std::vector<int>& devices,
                const std::vector<int64_t>& rows,
                int64_t microbatches);

}  // namespace medley
