#include "medley/synthesis/request.h"

#include <numeric>

#include "medley/sim/simulate.h"

namespace medley {

Outcome Request::ask(std::string_view other) const {
  if (cache.outcomes)
    if (const auto found = cache.outcomes->find(std::string(other)); found != cache.outcomes->end())
      return found->second;
  MEDLEY_CHECK(cache.find);
  Request one = *this;
  one.strategy = other;
  return cache.find(one);
}

void report(const Request& request, std::string_view what, size_t number, size_t of) {
  if (request.listener.progress) request.listener.progress(what, number, of);
}

void prove(const Request& request, Nanoseconds least) {
  if (request.listener.proved) request.listener.proved(least);
}

bool is_over(const Request& request) {
  return request.listener.is_over && request.listener.is_over();
}

Program lower(const Request& request, const Plan& plan) {
  return lower(*request.cache.analysis, plan, request.cluster, {.hash_plan = false});
}

Nanoseconds price(const Request& request, const Program& program) {
  const Nanoseconds step = simulate(program, *request.costs).step;
  return request.extra_cost ? step + request.extra_cost(program, step) : step;
}

std::vector<int> devices_of(const Request& request) {
  std::vector<int> devices(request.devices.empty() ? request.cluster.devices.size() : 0);
  std::iota(devices.begin(), devices.end(), 0);
  for (const std::string& name : request.devices)
    devices.push_back(*find_device(request.cluster, name));
  return devices;
}

}  // namespace medley
