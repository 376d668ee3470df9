#pragma once

// In which type each kind of device computes what a graph says in bf16 (Plan::bf16_as). bf16 is
// never emulated: a kind without it computes in f16 under a loss scale, or in f32.

#include "medley/plan/plan.h"

namespace medley {

// Whether a device of the plan computes in f16, so that losses are scaled.
bool computes_in_f16(const Plan& plan, const Graph& graph, const Cluster& cluster);

// Writes down what the kinds of the plan's devices compute that are not left with bf16. Nothing of
// a graph without bf16.
void note_types(Plan& plan, const Graph& graph, const Cluster& cluster);

// What each of these devices computes; empty if all of them compute bf16 as such, or none has to.
std::vector<DType> types_of(const std::vector<int>& devices,
                            const Graph& graph,
                            const Plan& plan,
                            const Cluster& cluster);

// Part of verify(plan).
void verify_types(const Plan& plan, const Cluster& cluster);

}  // namespace medley
