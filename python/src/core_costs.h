#pragma once

#include <string>

#include "medley/cost/cost_model.h"

// Returns costs from the text of a profile, analytic if empty. `file` names it in errors.
inline medley::CostModel costs_of(const medley::Cluster& cluster,
                                  const std::string& profile,
                                  const std::string& file) {
  if (profile.empty()) return medley::CostModel(cluster);
  return medley::CostModel(cluster, medley::parse_profile(profile, file));
}
