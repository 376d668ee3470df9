// The fields of a plan in JSON, one row each, for parsing and printing.

#include "medley/plan/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/json_place.h"
#include "medley/plan/texts.h"
#include "medley/schedule/schedules.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

// ---- rows ----

// A field of the object of a T. Rows are in print order.
template <typename T>
struct Field {
  std::string key;
  bool required;
  std::function<void(const JsonPlace&, T&)> read;
  std::function<void(const T&, Json&)> print;  // adds the field to an object
};
template <typename T>
const std::vector<Field<T>> kFields{};

template <typename T>
T read_fields(const JsonPlace& at) {
  T result;
  std::vector<JsonField> rows;
  for (const Field<T>& field : kFields<T>)
    rows.push_back({field.key, field.required, [&](const JsonPlace& p) { field.read(p, result); }});
  read_object(at, rows);
  return result;
}

template <typename T>
Json json_of(const T& value) {
  if constexpr (std::is_constructible_v<Json, const T&>) {
    return value;
  } else {
    Json object = Json::object();
    for (const Field<T>& field : kFields<T>) field.print(value, object);
    return object;
  }
}
template <typename T>
Json json_of(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(json_of(value));
  return list;
}
template <typename T>
Json json_of(const std::optional<T>& value) {
  return json_of(value.value());
}
Json json_of(const std::map<std::string, DType>& types) {
  std::map<std::string, std::string> texts;
  for (const auto& [kind, dtype] : types) texts[kind] = to_string(dtype);
  return texts;
}

constexpr bool kRequired = true;

// Returns the row of a member. It is omitted if its value is that of a new T.
template <typename T, typename Member, typename Read>
Field<T> field(std::string_view key, Member T::*member, Read read, bool required = false) {
  return {std::string(key),
          required,
          [=](const JsonPlace& at, T& to) { to.*member = static_cast<Member>(read(at)); },
          [=](const T& from, Json& object) {
            if (required || from.*member != T{}.*member) object[key] = json_of(from.*member);
          }};
}

// ---- values ----

constexpr size_t kMaxAxes = 2;
constexpr int64_t kMostNanoseconds = kMaxLength << 13;

std::string read_word(const JsonPlace& at, const std::vector<std::string>& words) {
  if (!at.json->is_string() ||
      std::find(words.begin(), words.end(), at.json->get<std::string>()) == words.end())
    at.refuse(fmt::format("\"{}\"", fmt::join(words, "\" or \"")));
  return at.json->get<std::string>();
}

std::string read_name(const JsonPlace& at) {
  if (!at.json->is_string() || !is_part_name(at.json->get<std::string>()))
    at.refuse("a name of letters, digits, \"_\" and \"-\" other than \"x\"");
  return at.json->get<std::string>();
}

std::string read_hash(const JsonPlace& at) {
  const bool is_hash =
      at.json->is_string() && at.json->get<std::string>().size() == 64 &&
      at.json->get<std::string>().find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hash) at.refuse("64 hex digits");
  return at.json->get<std::string>();
}

auto whole_number(int64_t least, int64_t most = kMaxLength) {
  return [=](const JsonPlace& at) { return read_integer(at, least, most); };
}

auto lengths(const char* expected) {
  return [=](const JsonPlace& at) {
    std::vector<int64_t> lengths = read_integers(at, 0, kMaxLength);
    if (lengths.empty()) at.refuse(expected);
    return lengths;
  };
}

template <typename Parse>
Choices read_choices(const JsonPlace& at, Parse parse, std::string_view forms) {
  if (!at.json->is_object()) at.refuse("an object of texts by name");
  Choices choices;
  for (const auto& [key, value] : at.json->items()) {
    const JsonPlace member = at.member(key);
    if (!value.is_string() || !parse(value.template get<std::string>())) member.refuse(forms);
    choices[key] = value.template get<std::string>();
  }
  return choices;
}

Choices read_placements(const JsonPlace& at) {
  return read_choices(at, parse_placement_text, kPlacementForms);
}
Choices read_ops(const JsonPlace& at) { return read_choices(at, parse_choice_text, kChoiceForms); }

Choices read_owners(const JsonPlace& at) {
  const auto parse = [](const std::string& text) { return is_part_name(text); };
  return read_choices(at, parse, "\"all\" or the name of a part");
}

std::vector<double> read_shares(const JsonPlace& at) {
  std::vector<double> shares;
  for (const JsonPlace& each : read_list(at)) {
    if (!each.json->is_number() || !is_share(each.json->get<double>()))
      each.refuse("0, or a number from 1e-9 to 1e9");
    shares.push_back(each.json->get<double>());
  }
  if (std::none_of(shares.begin(), shares.end(), [](double share) { return share > 0; }))
    at.refuse("a share for each device of an axis, one of them positive");
  return shares;
}

std::vector<int64_t> read_shape(const JsonPlace& at) {
  std::vector<int64_t> shape = read_integers(at, 1, kMaxLength);
  if (shape.empty() || shape.size() > kMaxAxes) at.refuse("one or two sizes");
  return shape;
}

std::vector<std::string> read_axes(const JsonPlace& at) {
  std::vector<std::string> axes;
  for (const JsonPlace& each : read_list(at)) {
    std::string name = read_text(each);
    if (name.empty() || std::find(axes.begin(), axes.end(), name) != axes.end())
      each.refuse("a name that no other axis has");
    axes.push_back(std::move(name));
  }
  return axes;
}

std::string read_recompute(const JsonPlace& at) {
  return read_word(at, {kRecompute.begin(), kRecompute.end()});
}

std::string read_schedule(const JsonPlace& at) {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) names.emplace_back(schedule.name);
  return read_word(at, names);
}

std::map<std::string, DType> read_bf16_as(const JsonPlace& at) {
  if (!at.json->is_object()) at.refuse("an object of types by device type");
  std::map<std::string, DType> types;
  for (const auto& [kind, value] : at.json->items()) {
    const auto dtype =
        value.is_string() ? parse_bf16_as(value.get<std::string>()) : std::optional<DType>();
    if (!dtype) at.member(kind).refuse("\"bf16\", \"f16\" or \"f32\"");
    types[kind] = *dtype;
  }
  return types;
}

template <auto Read>
auto read_all(const JsonPlace& at) {
  std::vector<decltype(Read(at))> all;
  for (const JsonPlace& each : read_list(at)) all.push_back(Read(each));
  return all;
}

template <auto Read>
auto read_some(const JsonPlace& at) {
  auto some = read_all<Read>(at);
  if (some.empty()) at.refuse("a list of at least one");
  return some;
}

// ---- objects ----

template <>
const std::vector<Field<Part>> kFields<Part>{
    field("name", &Part::name, read_name, kRequired),
    field("lengths", &Part::lengths, lengths("a length for each device of an axis")),
    field("shares", &Part::shares, read_shares),
};

Part read_part(const JsonPlace& at) {
  Part part = read_fields<Part>(at);
  if (is_reserved_part(part.name))
    at.member("name").refuse("another name: \"rows\" and \"even\" are always there");
  if (part.lengths.empty() == part.shares.empty()) at.refuse("one of \"lengths\" and \"shares\"");
  return part;
}

template <>
const std::vector<Field<Microbatch>> kFields<Microbatch>{
    field("rows", &Microbatch::rows, whole_number(1), kRequired),
    field("lengths", &Microbatch::lengths, lengths("a length for each device of the axis")),
};

template <>
const std::vector<Field<Mesh>> kFields<Mesh>{
    field("axes", &Mesh::axes, read_axes),
    field("shape", &Mesh::shape, read_shape),
    field("devices", &Mesh::devices, read_texts, kRequired),
};

// Without a shape all devices form one axis.
Mesh read_mesh(const JsonPlace& at) {
  Mesh mesh = read_fields<Mesh>(at);
  if (mesh.devices.empty()) at.member("devices").refuse("names of devices");
  if (mesh.shape.empty()) mesh.shape = {static_cast<int64_t>(mesh.devices.size())};
  if (!at.json->contains("axes"))
    mesh.axes = mesh.shape.size() == 1 ? std::vector<std::string>{"data"}
                                       : std::vector<std::string>{"data", "model"};
  if (mesh.axes.size() != mesh.shape.size())
    at.member("axes").refuse(
        fmt::format("{} names, one for each size of the shape", mesh.shape.size()));
  return mesh;
}

template <>
const std::vector<Field<Stage>> kFields<Stage>{
    field("first", &Stage::first, read_text),
    field("mesh", &Stage::mesh, read_mesh, kRequired),
    field("rows", &Stage::rows, read_shares),
    field("placements", &Stage::placements, read_placements),
    field("batch", &Stage::batch, read_placements),
    field("ops", &Stage::ops, read_ops),
    field("updates", &Stage::updates, read_placements),
    field("recompute", &Stage::recompute, read_recompute),
};

Field<Pipeline> of_schedule(const ScheduleField& row) {
  if (!row.counts) return field<Pipeline, int64_t>(row.key, row.number, whole_number(row.least));
  return field<Pipeline, std::vector<int64_t>>(
      row.key, row.counts, [least = row.least](const JsonPlace& at) {
        return read_integers(at, least, kMaxLength);
      });
}

template <>
const std::vector<Field<Pipeline>> kFields<Pipeline> = [] {
  std::vector<Field<Pipeline>> all{
      field<Pipeline, std::string>("schedule", &Pipeline::schedule, read_schedule)};
  for (const ScheduleField& row : schedule_fields()) all.push_back(of_schedule(row));
  all.push_back(field(
      "microbatches", &Pipeline::microbatches, read_some<read_fields<Microbatch>>, kRequired));
  all.push_back(field("stages", &Pipeline::stages, read_some<read_fields<Stage>>, kRequired));
  return all;
}();

template <>
const std::vector<Field<StepBound>> kFields<StepBound>{
    field("step_ns", &StepBound::step_ns, whole_number(1, kMostNanoseconds), kRequired),
    field("least_ns", &StepBound::least_ns, whole_number(0, kMostNanoseconds), kRequired),
};

StepBound read_bound(const JsonPlace& at) {
  const auto bound = read_fields<StepBound>(at);
  if (bound.least_ns > bound.step_ns) at.member("least_ns").refuse("no more than step_ns");
  return bound;
}

// Returns a field with one value in all plans. It is read before the others.
Field<Plan> constant(const std::string& key, const Json& value) {
  return {key,
          kRequired,
          [](const JsonPlace&, Plan&) {},
          [=](const Plan&, Json& object) { object[key] = value; }};
}

Field<Plan> loss_over() {
  return {"loss_over",
          false,
          [](const JsonPlace& at, Plan& to) {
            const std::vector<std::string> names(std::begin(kLossOver), std::end(kLossOver));
            to.loss_over_microbatches = read_word(at, names) == kLossOver[1];
          },
          [](const Plan& from, Json& object) {
            if (from.loss_over_microbatches) object["loss_over"] = kLossOver[1];
          }};
}

template <>
const std::vector<Field<Plan>> kFields<Plan>{
    constant("format", "medley-plan"),
    constant("version", 1),
    field("strategy", &Plan::strategy, read_text),
    field("graph_hash", &Plan::graph_hash, read_hash),
    field("cluster_hash", &Plan::cluster_hash, read_hash),
    field("global_batch", &Plan::global_batch, whole_number(1), kRequired),
    loss_over(),
    field("tolerate_node_loss", &Plan::tolerate_node_loss, whole_number(0, 1)),
    field("bound", &Plan::bound, read_bound),
    field("parts", &Plan::parts, read_all<read_part>),
    field("owners", &Plan::owners, read_owners),
    field("bf16_as", &Plan::bf16_as, read_bf16_as),
    field("pipelines", &Plan::pipelines, read_some<read_fields<Pipeline>>, kRequired),
};

// The version comes first: other versions may have other keys.
void check_version(const JsonPlace& at) {
  if (!at.json->is_object()) at.refuse("a plan");
  if (!at.json->contains("format")) at.refuse("\"format\": \"medley-plan\"");
  read_format(at.member("format"), "medley-plan");
  if (!at.json->contains("version")) at.refuse("\"version\": 1");
  read_version(at.member("version"));
}

}  // namespace

nlohmann::ordered_json to_ordered_json(const Plan& plan) { return json_of(plan); }

Plan parse_plan(std::string_view json, std::string_view file) {
  const nlohmann::json parsed = parse_json(json, file);
  const JsonPlace at{&parsed, std::string(file), ""};
  check_version(at);
  Plan plan = read_fields<Plan>(at);
  std::set<std::string> names;
  for (size_t i = 0; i < plan.parts.size(); ++i)
    if (!names.insert(plan.parts[i].name).second)
      at.member("parts").element(i).member("name").refuse("a name that no other part has");
  return plan;
}

}  // namespace medley
