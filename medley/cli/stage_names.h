#pragma once

// Short names of stages for tables: "1", or "0/1" (pipeline, stage) if a plan has several
// pipelines. Short texts for device types.

#include <map>
#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/program/program.h"

namespace medley {

// Returns [stage] names, pipeline after pipeline.
std::vector<std::string> stage_names(const Plan& plan);
std::vector<std::string> stage_names(const Program& program);

std::string kinds_text(const std::map<std::string, size_t>& kinds);  // "4 A100, 2 V100"

}  // namespace medley
