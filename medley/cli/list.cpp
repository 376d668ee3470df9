#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/units.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/cluster/cluster.h"
#include "medley/ops/rule.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

// A listing: a table and the same rows as JSON.
struct Listing {
  Table table;
  Json json = Json::array();
};

Listing list_strategies(const Session&) {
  Listing listing{Table("strategy|what it does")};
  for (const Strategy& strategy : strategies()) {
    listing.table.add({std::string(strategy.name), std::string(strategy.help)});
    listing.json.push_back({{"name", strategy.name}, {"help", strategy.help}});
  }
  return listing;
}

std::string rate_text(const DeviceKind& kind, DType dtype) {
  const auto rate = kind.sustained.find(dtype);
  return rate == kind.sustained.end() ? "-" : to_string(FlopsPerSecond{rate->second});
}

std::string bf16_text(const DeviceKind& kind) {
  return kind.bf16_as == DType::kBF16 ? rate_text(kind, DType::kBF16)
                                      : fmt::format("as {}", to_string(kind.bf16_as));
}

Listing list_devices(const Session& session) {
  Listing listing{Table("device|memory|bandwidth|link|sustained f32|bf16|f16")};
  for (const auto& [name, kind] : read_catalogue(session.catalogue)) {
    listing.table.add({name,
                       to_string(Bytes{static_cast<int64_t>(kind.memory_bytes)}),
                       to_string(BytesPerSecond{kind.memory_bandwidth}),
                       kind.link ? to_string(BytesPerSecond{*kind.link}) : "-",
                       rate_text(kind, DType::kF32),
                       bf16_text(kind),
                       rate_text(kind, DType::kF16)});
    Json rates = Json::object();
    for (const auto& [dtype, rate] : kind.sustained) rates[std::string(to_string(dtype))] = rate;
    listing.json.push_back({{"name", name},
                            {"memory_bytes", kind.memory_bytes},
                            {"memory_bandwidth", kind.memory_bandwidth},
                            {"link", kind.link ? Json(*kind.link) : Json()},
                            {"launch_latency", kind.launch_latency},
                            {"bf16_as", std::string(to_string(kind.bf16_as))},
                            {"sustained", rates}});
  }
  return listing;
}

Listing list_ops(const Session&) {
  Listing listing{Table("op|rule|linear in")};
  for (const Rule& rule : rules()) {
    const std::string pattern = rule.instance ? "depends on arguments" : std::string(rule.pattern);
    listing.table.add({std::string(rule.op), pattern, std::string(rule.linear)});
    listing.json.push_back({{"op", rule.op}, {"rule", pattern}, {"linear", rule.linear}});
  }
  return listing;
}

struct Listed {
  std::string name;
  Listing (*list)(const Session& session);
};
const std::vector<Listed>& listed() {
  static const std::vector<Listed> all = {
      {"strategies", list_strategies}, {"devices", list_devices}, {"ops", list_ops}};
  return all;
}

}  // namespace

std::function<void()> prepare_list(Arguments& arguments, Session& session) {
  std::vector<std::string> names;
  for (const Listed& each : listed()) names.push_back(each.name);
  auto what = std::make_shared<std::string>();
  arguments.text("what",
                 *what,
                 fmt::format("{}", fmt::join(names, ", ")),
                 {.required = true, .one_of = names});
  return [what, &session] {
    for (const Listed& each : listed()) {
      if (each.name != *what) continue;
      const Listing listing = each.list(session);
      session.out << (session.json ? listing.json.dump(2) + "\n" : listing.table.text());
      if (!session.json && *what == "strategies")
        session.out << next_text(
            {{"medley", "compare", "g.graph", "cluster.yaml", "--global-batch", "64"}});
    }
  };
}

}  // namespace medley
