#include "medley/runtime/handshake.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "medley/base/error.h"

namespace medley {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string key(int generation, int device) {
  return fmt::format("generation/{}/hashes/{}", generation, device);
}

// Returns the time left until the common deadline, so that time-outs do not add up.
milliseconds time_left(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return std::max(left, milliseconds(0));
}

NamedHashes published(
    Store& store, int generation, int device, milliseconds timeout, milliseconds left) {
  std::string text;
  try {
    text = store.wait(key(generation, device), left);
  } catch (const Error& cause) {
    throw Error(Blame::kEnvironment,
                fmt::format("handshake of generation {}: device {} has not come within {} ms: {}",
                            generation,
                            device,
                            timeout.count(),
                            cause.what()));
  }
  return json::parse(text).get<NamedHashes>();
}

std::string hash_named(const NamedHashes& hashes, const std::string& name) {
  for (const auto& [each, hash] : hashes)
    if (each == name) return hash;
  return "(none)";
}

}  // namespace

void handshake(Store& store,
               int generation,
               int device,
               const std::vector<int>& devices,
               const NamedHashes& hashes,
               milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  store.set(key(generation, device), json(hashes).dump());
  NamedHashes first;
  std::string difference;
  for (int other : devices) {
    const NamedHashes theirs = published(store, generation, other, timeout, time_left(deadline));
    if (other == devices.front()) first = theirs;
    if (theirs == first || !difference.empty()) continue;
    for (const auto& [name, hash] : first) {
      const std::string found = hash_named(theirs, name);
      if (found == hash) continue;
      difference = fmt::format("devices {} and {} have different {}: {} and {}",
                               devices.front(),
                               other,
                               name,
                               hash,
                               found);
      break;
    }
    if (difference.empty())
      difference = fmt::format("devices {} and {} compare different hashes: {} and {}",
                               devices.front(),
                               other,
                               first,
                               theirs);
  }
  if (!difference.empty()) throw Error(Blame::kCaller, difference);
}

}  // namespace medley
