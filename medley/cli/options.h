#pragma once

// Arguments and options that several commands take, each said once.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace medley {

struct RequestOptions {
  std::string graph, cluster, profile;
  int64_t global_batch = 0, microbatches = 0;
  std::vector<std::string> devices;
};
void add_request_options(CLI::App& app, RequestOptions& options);

// A graph, a cluster, and a plan for both.
struct PlannedOptions {
  std::string graph, cluster, plan;
};
void add_planned_options(CLI::App& app, PlannedOptions& options);

void add_profile_option(CLI::App& app, std::string& profile);

}  // namespace medley
