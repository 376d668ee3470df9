#include "medley/cli/explain_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "medley/cli/table.h"
#include "medley/plan/texts.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

// Limits the rows of tables: with four devices the explanation stays within 40 lines.
constexpr size_t kMostModules = 8;
constexpr size_t kMostRows = 6;
constexpr const char* kReplicated = "replicated";
constexpr const char* kPartial = "partial";

// Returns equal entries once, with their number, the most frequent first.
Json counted(const char* key,
             const std::map<std::pair<std::string, std::string>, int64_t>& counts,
             const std::map<std::string, std::string>& meanings) {
  std::vector<std::pair<std::pair<std::string, std::string>, int64_t>> order(counts.begin(),
                                                                             counts.end());
  std::stable_sort(
      order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  Json rows = Json::array();
  for (const auto& [what, count] : order)
    rows.push_back({{key, what.first},
                    {"count", count},
                    {"plan_text", what.second},
                    {"meaning", meanings.at(what.second)}});
  return rows;
}

Json modules_json(const std::vector<Said>& ops) {
  std::vector<std::string> order;  // as in the graph
  std::map<std::string, std::map<std::string, int64_t>> counts;
  for (const Said& op : ops) {
    const std::string module = module_pattern(op.name);
    if (!counts.contains(module)) order.push_back(module);
    ++counts[module][divided_by(op.text)];
  }
  Json rows = Json::array();
  for (const std::string& module : order) {
    rows.push_back({{"module", module}, {"by", Json::object()}});
    for (const auto& [by, count] : counts[module]) rows.back()["by"][by] = count;
  }
  return rows;
}

int64_t sum_of(const Json& by) {
  int64_t sum = 0;
  for (const auto& [name, count] : by.items()) sum += count.get<int64_t>();
  return sum;
}

// Merges the modules with the fewest ops into one row.
std::vector<Json> shortened(const Json& modules) {
  std::vector<Json> rows(modules.begin(), modules.end());
  while (rows.size() > kMostModules) {
    const auto others = std::find_if(
        rows.begin(), rows.end(), [](const Json& row) { return row["module"] == "(others)"; });
    if (others == rows.end()) {
      rows.push_back({{"module", "(others)"}, {"by", Json::object()}});
      continue;
    }
    const auto least = std::min_element(rows.begin(), others, [](const Json& a, const Json& b) {
      return sum_of(a["by"]) < sum_of(b["by"]);
    });
    for (const auto& [by, count] : (*least)["by"].items())
      (*others)["by"][by] = others->at("by").value(by, int64_t{0}) + count.get<int64_t>();
    rows.erase(least);
  }
  return rows;
}

std::string modules_text(const Json& modules) {
  std::map<std::string, int64_t> totals;
  for (const Json& row : modules)
    for (const auto& [by, count] : row["by"].items()) totals[by] += count.get<int64_t>();
  std::vector<std::string> header{"layer"};
  for (const auto& [by, total] : totals) header.push_back(is_undivided(by) ? by : "by " + by);
  Table table(header);
  for (const Json& row : shortened(modules)) {
    std::vector<std::string> cells{row["module"].get<std::string>()};
    for (const auto& [by, total] : totals)
      cells.push_back(std::to_string(row["by"].value(by, int64_t{0})));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string rows_text(const std::string& key, const Json& rows, bool counts = true) {
  Table table(key + "|count|in plan.json|meaning");
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i)
    table.add({rows[i][key].get<std::string>(),
               counts ? std::to_string(rows[i]["count"].get<int64_t>()) : "",
               rows[i]["plan_text"].get<std::string>(),
               rows[i]["meaning"].get<std::string>()});
  std::string out = table.text();
  if (rows.size() > kMostRows) out += fmt::format("... and {} more\n", rows.size() - kMostRows);
  return out;
}

}  // namespace

std::string block_pattern(const std::string& name) {
  std::string out;
  for (size_t i = 0; i <= name.size();) {
    const size_t end = std::min(name.find_first_of("./", i), name.size());
    const std::string word = name.substr(i, end - i);
    const bool number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    out += number ? "*" : word;
    if (end < name.size()) out += name[end];
    i = end + 1;
  }
  return out;
}

std::string module_pattern(const std::string& op_name) {
  const size_t slash = op_name.rfind('/');
  if (slash == std::string::npos || op_name.find('#', slash) == std::string::npos)
    return "(parameters)";
  if (slash == 0) return "(the model)";
  const std::string path = block_pattern(op_name.substr(0, slash));
  const size_t block = path.find('*');
  // Without a block the first name suffices.
  size_t end = block == std::string::npos ? 0 : std::min(block + 2, path.size());
  end = std::min(path.find('.', end), path.size());
  return path.substr(0, end);
}

std::string divided_by(const std::string& choice) {
  std::string out;
  for (const ChoiceText& axis : parse_choice_text(choice).value_or(std::vector<ChoiceText>{})) {
    if (!out.empty()) out += " x ";
    if (axis.kind == ChoiceText::Kind::kReplicate)
      out += kReplicated;
    else if (axis.kind == ChoiceText::Kind::kLinear)
      out += kPartial;
    else if (axis.kind == ChoiceText::Kind::kOpen)
      out += "*";
    else
      out += axis.part;
  }
  return out;
}

bool is_undivided(const std::string& by) { return by == kReplicated || by == kPartial; }

Json groups_json(const Plan& plan, const std::vector<Said>& ops, const std::vector<Said>& stored) {
  std::map<std::pair<std::string, std::string>, int64_t> otherwise, shards;
  std::map<std::string, std::string> meanings;
  int64_t replicated_ops = 0;
  for (const Said& op : ops) {
    const std::string by = divided_by(op.text);
    if (by == kReplicated) ++replicated_ops;
    if (is_undivided(by) || by == kRows) continue;
    ++otherwise[{block_pattern(op.name), op.text}];
    meanings[op.text] = words(plan, parse_choice_text(op.text));
  }
  for (const Said& value : stored) {
    if (value.text == "R") continue;
    ++shards[{block_pattern(value.name), value.text}];
    meanings[value.text] = words(plan, parse_placement_text(value.text));
  }
  return {{"ops", ops.size()},
          {"replicated_ops", replicated_ops},
          {"modules", modules_json(ops)},
          {"not_by_rows", counted("op", otherwise, meanings)},
          {"parameters", stored.size()},
          {"sharded", counted("parameter", shards, meanings)}};
}

std::string said_text(const Json& groups) {
  std::string out;
  for (const auto& [key, rows] :
       {std::pair("op", groups["not_by_rows"]), std::pair("parameter", groups["sharded"])})
    if (!rows.empty()) out += rows_text(key, rows, false) + "\n";
  out.pop_back();
  return out;
}

std::string groups_text(const Json& groups) {
  std::string out = modules_text(groups["modules"]);
  out += fmt::format(
      "replicated: every device computes the whole op ({} of {} ops)\n"
      "partial: the op adds to a partial sum\n\n",
      groups["replicated_ops"].get<int64_t>(),
      groups["ops"].get<int64_t>());
  const Json& otherwise = groups["not_by_rows"];
  out += otherwise.empty() ? "Every op that is sharded is sharded by rows.\n"
                           : rows_text("op", otherwise);
  const Json& shards = groups["sharded"];
  if (shards.empty())
    return out + fmt::format("All {} parameters are replicated on every device.\n",
                             groups["parameters"].get<int64_t>());
  int64_t sharded = 0;
  for (const Json& row : shards) sharded += row["count"].get<int64_t>();
  out += "\n" + rows_text("parameter", shards);
  return out + fmt::format("{} of {} parameters are sharded, the rest replicated.\n",
                           sharded,
                           groups["parameters"].get<int64_t>());
}

}  // namespace medley
