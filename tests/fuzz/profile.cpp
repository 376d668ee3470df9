// An accepted profile prints, and parses back to the same bytes. With a cluster's devices it gives
// costs.

#include "medley/profile/profile.h"
#include "medley/cost/cost_model.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Cluster cluster = parse_cluster(R"(format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: A100-40GB, devices_per_node: 1}
  - {name: slow, count: 1, device: T4-16GB, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
)",
                                               "measured.yaml",
                                               read_catalogue(MEDLEY_ROOT "/data/devices"));
  Profile profile;
  if (!accepts([&] { profile = parse_profile(text_of(data, size), "fuzz.json"); })) return 0;
  const std::string printed = print(profile);
  const Profile again = parse_profile(printed, "printed.json");
  require_equal(print(again), printed, "what is printed parses back equal");
  require(again == profile, "what is printed parses back equal");
  require(merge(profile, again) == profile, "merging a profile with itself changes nothing");

  if (accepts([&] { verify(profile, cluster); })) accepts([&] { CostModel(cluster, profile); });
  return 0;
}
