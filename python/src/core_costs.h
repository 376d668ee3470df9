#pragma once

#include <string>

#include "medley/cost/cost_model.h"

// By the text of a profile; analytic if it is empty. `file` names it in errors.
inline medley::CostModel costs_of(const medley::Cluster& cluster,
                                  const std::string& profile,
                                  const std::string& file) {
  if (profile.empty()) return medley::CostModel(cluster);
  return medley::CostModel(cluster, medley::parse_profile(profile, file));
}
