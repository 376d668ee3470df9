#pragma once

// Dtypes in which each device type computes bf16 values of a graph (Plan::bf16_as). Types without
// bf16 compute in f16 under a loss scale, or in f32. They never emulate bf16.

#include "medley/plan/plan.h"

namespace medley {

// Returns whether a device of the plan computes in f16, so losses are scaled.
bool computes_in_f16(const Plan& plan, const Graph& graph, const Cluster& cluster);

// Records the replacement dtype of each used device type without bf16. Does nothing for a graph
// without bf16.
void note_types(Plan& plan, const Graph& graph, const Cluster& cluster);

// Returns the dtype of each device for bf16; empty if all compute in bf16 or the graph has none.
std::vector<DType> types_of(const std::vector<int>& devices,
                            const Graph& graph,
                            const Plan& plan,
                            const Cluster& cluster);

// Part of verify(plan).
void verify_types(const Plan& plan, const Cluster& cluster);

}  // namespace medley
