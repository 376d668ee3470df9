#pragma once

// Short names of stages for tables: "1", or, where a plan has several pipelines, "0/1": the
// pipeline, then its stage.

#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/program/program.h"

namespace medley {

// [stage] pipeline after pipeline.
std::vector<std::string> stage_names(const Plan& plan);
std::vector<std::string> stage_names(const Program& program);

}  // namespace medley
