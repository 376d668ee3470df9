#pragma once

// Short names of stages for tables: "1", or "0/1" (pipeline, stage) if a plan has several
// pipelines.

#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/program/program.h"

namespace medley {

// Returns [stage] names, pipeline after pipeline.
std::vector<std::string> stage_names(const Plan& plan);
std::vector<std::string> stage_names(const Program& program);

}  // namespace medley
