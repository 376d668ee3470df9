#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/base/units.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/cluster/cluster.h"
#include "medley/ops/rule.h"
#include "medley/plan/nearest.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

// A listing: a table and the same rows as JSON, without the names that lack a text.
struct Listing {
  void add(std::vector<std::string> row, Json entry) {
    names.push_back(row.front());
    if (row.front().find(text) == std::string::npos) return;
    table.add(std::move(row));
    json.push_back(std::move(entry));
  }

  Table table;
  std::string text = "";
  Json json = Json::array();
  std::vector<std::string> names = {};  // also those that are left out
};

void list_strategies(const Session&, Listing& listing) {
  for (const Strategy& each : strategies())
    listing.add({std::string(each.name), std::string(each.help)},
                {{"name", each.name}, {"help", each.help}});
}

std::string rate_text(const DeviceKind& kind, DType dtype) {
  const auto rate = kind.sustained.find(dtype);
  return rate == kind.sustained.end() ? "-" : to_string(FlopsPerSecond{rate->second});
}

std::string bf16_text(const DeviceKind& kind) {
  return kind.bf16_as == DType::kBF16 ? rate_text(kind, DType::kBF16)
                                      : fmt::format("as {}", to_string(kind.bf16_as));
}

void list_devices(const Session& session, Listing& listing) {
  for (const auto& [name, kind] : read_catalogue(session.catalogue)) {
    Json rates = Json::object();
    for (const auto& [dtype, rate] : kind.sustained) rates[std::string(to_string(dtype))] = rate;
    listing.add({name,
                 to_string(Bytes{static_cast<int64_t>(kind.memory_bytes)}),
                 to_string(BytesPerSecond{kind.memory_bandwidth}),
                 kind.link ? to_string(BytesPerSecond{*kind.link}) : "-",
                 rate_text(kind, DType::kF32),
                 bf16_text(kind),
                 rate_text(kind, DType::kF16)},
                {{"name", name},
                 {"memory_bytes", kind.memory_bytes},
                 {"memory_bandwidth", kind.memory_bandwidth},
                 {"link", kind.link ? Json(*kind.link) : Json()},
                 {"launch_latency", kind.launch_latency},
                 {"bf16_as", std::string(to_string(kind.bf16_as))},
                 {"sustained", rates}});
  }
}

void list_ops(const Session&, Listing& listing) {
  for (const Rule& rule : rules()) {
    const std::string pattern = rule.instance ? "depends on arguments" : std::string(rule.pattern);
    listing.add({std::string(rule.op), pattern, std::string(rule.linear)},
                {{"op", rule.op}, {"rule", pattern}, {"linear", rule.linear}});
  }
}

struct Listed {
  const char* name;
  std::string_view titles;
  void (*list)(const Session& session, Listing& listing);
};
constexpr Listed kListed[] = {
    {"strategies", "strategy|what it does", list_strategies},
    {"devices", "device|memory|bandwidth|link|sustained f32|bf16|f16", list_devices},
    {"ops", "op|rule|linear in", list_ops}};

}  // namespace

std::function<void()> prepare_list(Arguments& arguments, Session& session) {
  std::vector<std::string> names;
  for (const Listed& each : kListed) names.push_back(each.name);
  auto what = std::make_shared<std::string>(), text = std::make_shared<std::string>();
  arguments.text("what", *what, "The list to print", {.required = true, .one_of = names});
  arguments.text("text", *text, "Only names that contain this: mm");
  return [what, text, &session] {
    for (const Listed& each : kListed) {
      if (each.name != *what) continue;
      Listing listing{Table(each.titles), *text};
      each.list(session, listing);
      if (listing.table.empty())
        throw Error(Blame::kCaller,
                    fmt::format("medley list {}: found \"{}\", expected a part of a name{}",
                                *what,
                                *text,
                                suggestion(*text, listing.names)));
      session.out << (session.json ? listing.json.dump(2) + "\n" : listing.table.text());
      if (!session.json && *what == "strategies")
        session.out << next_text(
            {{"medley", "compare", "g.graph", "cluster.yaml", "--global-batch", "64"}});
    }
  };
}

}  // namespace medley
