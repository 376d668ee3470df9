#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/json_place.h"
#include "medley/plan/plan.h"
#include "medley/plan/texts.h"
#include "medley/schedule/schedules.h"

namespace medley {
namespace {

constexpr size_t kMaxAxes = 2;

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

Choices read_states(const JsonPlace& at) { return read_choices(at, parse_state_text, kStateForms); }

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

Part read_part(const JsonPlace& at) {
  Part part;
  read_object(at,
              {{"name", true, [&](const JsonPlace& p) { part.name = read_name(p); }},
               {"lengths",
                false,
                [&](const JsonPlace& p) {
                  part.lengths = read_integers(p, 0, kMaxLength);
                  if (part.lengths.empty()) p.refuse("a length for each device of an axis");
                }},
               {"shares", false, [&](const JsonPlace& p) { part.shares = read_shares(p); }}});
  if (is_reserved_part(part.name))
    at.member("name").refuse("another name: \"rows\" and \"even\" are always there");
  if (part.lengths.empty() == part.shares.empty()) at.refuse("one of \"lengths\" and \"shares\"");
  return part;
}

Microbatch read_microbatch(const JsonPlace& at) {
  Microbatch microbatch;
  read_object(at,
              {{"rows",
                true,
                [&](const JsonPlace& p) { microbatch.rows = read_integer(p, 1, kMaxLength); }},
               {"lengths", false, [&](const JsonPlace& p) {
                  microbatch.lengths = read_integers(p, 0, kMaxLength);
                  if (microbatch.lengths.empty()) p.refuse("a length for each device of the axis");
                }}});
  return microbatch;
}

// Without a shape all devices form one axis.
Mesh read_mesh(const JsonPlace& at) {
  Mesh mesh;
  read_object(at,
              {{"devices", true, [&](const JsonPlace& p) { mesh.devices = read_texts(p); }},
               {"shape",
                false,
                [&](const JsonPlace& p) {
                  mesh.shape = read_integers(p, 1, kMaxLength);
                  if (mesh.shape.empty() || mesh.shape.size() > kMaxAxes)
                    p.refuse("one or two sizes");
                }},
               {"axes", false, [&](const JsonPlace& p) {
                  for (const JsonPlace& each : read_list(p)) {
                    std::string name = read_text(each);
                    if (name.empty() ||
                        std::find(mesh.axes.begin(), mesh.axes.end(), name) != mesh.axes.end())
                      each.refuse("a name that no other axis has");
                    mesh.axes.push_back(std::move(name));
                  }
                }}});
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

Stage read_stage(const JsonPlace& at) {
  Stage stage;
  read_object(
      at,
      {{"first", false, [&](const JsonPlace& p) { stage.first = read_text(p); }},
       {"mesh", true, [&](const JsonPlace& p) { stage.mesh = read_mesh(p); }},
       {"rows", false, [&](const JsonPlace& p) { stage.rows = read_shares(p); }},
       {"states", false, [&](const JsonPlace& p) { stage.states = read_states(p); }},
       {"batch", false, [&](const JsonPlace& p) { stage.batch = read_states(p); }},
       {"ops",
        false,
        [&](const JsonPlace& p) { stage.ops = read_choices(p, parse_choice_text, kChoiceForms); }},
       {"updates", false, [&](const JsonPlace& p) { stage.updates = read_states(p); }},
       {"recompute", false, [&](const JsonPlace& p) {
          stage.recompute = read_word(p, {kRecompute.begin(), kRecompute.end()});
        }}});
  return stage;
}

template <typename T>
std::vector<T> read_all(const JsonPlace& at, T (*read)(const JsonPlace&)) {
  std::vector<T> all;
  for (const JsonPlace& each : read_list(at)) all.push_back(read(each));
  return all;
}

template <typename T>
std::vector<T> read_some(const JsonPlace& at, T (*read)(const JsonPlace&)) {
  auto some = read_all(at, read);
  if (some.empty()) at.refuse("a list of at least one");
  return some;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) names.emplace_back(schedule.name);
  return names;
}

Pipeline read_pipeline(const JsonPlace& at) {
  Pipeline pipeline;
  std::vector<JsonField> fields = {
      {"microbatches",
       true,
       [&](const JsonPlace& p) { pipeline.microbatches = read_some(p, read_microbatch); }},
      {"schedule", false, [&](const JsonPlace& p) {
         pipeline.schedule = read_word(p, schedule_names());
       }}};
  for (const ScheduleField& field : schedule_fields())
    fields.push_back({std::string(field.key), false, [&pipeline, field](const JsonPlace& p) {
                        if (field.counts)
                          pipeline.*field.counts = read_integers(p, field.least, kMaxLength);
                        else
                          pipeline.*field.number = read_integer(p, field.least, kMaxLength);
                      }});
  fields.push_back(
      {"stages", true, [&](const JsonPlace& p) { pipeline.stages = read_some(p, read_stage); }});
  read_object(at, fields);
  return pipeline;
}

// The version comes first: another one may have other keys.
void check_version(const JsonPlace& at) {
  if (!at.json->is_object()) at.refuse("a plan");
  if (!at.json->contains("format")) at.refuse("\"format\": \"medley-plan\"");
  read_format(at.member("format"), "medley-plan");
  if (!at.json->contains("version")) at.refuse("\"version\": 1");
  read_version(at.member("version"));
}

StepBound read_bound(const JsonPlace& at) {
  StepBound bound;
  const auto read = [](int64_t& to, int64_t least) {
    return [&to, least](const JsonPlace& p) { to = read_integer(p, least, kMaxLength << 13); };
  };
  read_object(
      at, {{"step_ns", true, read(bound.step_ns, 1)}, {"least_ns", true, read(bound.least_ns, 0)}});
  if (bound.least_ns > bound.step_ns) at.member("least_ns").refuse("no more than step_ns");
  return bound;
}

std::map<std::string, DType> read_bf16_as(const JsonPlace& at) {
  if (!at.json->is_object()) at.refuse("an object of types by kind of device");
  std::map<std::string, DType> types;
  for (const auto& [kind, value] : at.json->items()) {
    const auto dtype =
        value.is_string() ? parse_bf16_as(value.get<std::string>()) : std::optional<DType>();
    if (!dtype) at.member(kind).refuse("\"bf16\", \"f16\" or \"f32\"");
    types[kind] = *dtype;
  }
  return types;
}

bool read_loss_over(const JsonPlace& at) {
  const std::string over = read_text(at);
  if (over != kLossOver[0] && over != kLossOver[1]) at.refuse("\"batch\" or \"microbatches\"");
  return over == kLossOver[1];
}

}  // namespace

Plan parse_plan(std::string_view json, std::string_view file) {
  const nlohmann::json parsed = parse_json(json, file);
  const JsonPlace at{&parsed, std::string(file), ""};
  check_version(at);

  Plan plan;
  read_object(
      at,
      {{"format", true, [](const JsonPlace&) {}},
       {"version", true, [](const JsonPlace&) {}},
       {"strategy", false, [&](const JsonPlace& p) { plan.strategy = read_text(p); }},
       {"graph_hash", false, [&](const JsonPlace& p) { plan.graph_hash = read_hash(p); }},
       {"cluster_hash", false, [&](const JsonPlace& p) { plan.cluster_hash = read_hash(p); }},
       {"global_batch",
        true,
        [&](const JsonPlace& p) { plan.global_batch = read_integer(p, 1, kMaxLength); }},
       {"loss_over",
        false,
        [&](const JsonPlace& p) { plan.loss_over_microbatches = read_loss_over(p); }},
       {"survive",
        false,
        [&](const JsonPlace& p) { plan.survive = static_cast<int>(read_integer(p, 0, 1)); }},
       {"bound", false, [&](const JsonPlace& p) { plan.bound = read_bound(p); }},
       {"parts", false, [&](const JsonPlace& p) { plan.parts = read_all(p, read_part); }},
       {"owners", false, [&](const JsonPlace& p) { plan.owners = read_owners(p); }},
       {"bf16_as", false, [&](const JsonPlace& p) { plan.bf16_as = read_bf16_as(p); }},
       {"pipelines", true, [&](const JsonPlace& p) {
          plan.pipelines = read_some(p, read_pipeline);
        }}});

  std::set<std::string> names;
  for (size_t i = 0; i < plan.parts.size(); ++i)
    if (!names.insert(plan.parts[i].name).second)
      at.member("parts").element(i).member("name").refuse("a name that no other part has");
  return plan;
}

}  // namespace medley
