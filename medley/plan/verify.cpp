#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/plan/compute_types.h"
#include "medley/plan/match.h"
#include "medley/plan/nearest.h"
#include "medley/plan/plan.h"
#include "medley/plan/texts.h"
#include "medley/plan/verify_rows.h"

namespace medley {
namespace {

template <typename Found>
[[noreturn]] void refuse(const std::string& place,
                         const Found& found,
                         const std::string& expected) {
  throw Error(Blame::kCaller, fmt::format("{}: found {}, expected {}", place, found, expected));
}

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string list_text(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string pipeline_place(size_t pipeline) { return fmt::format("pipelines[{}]", pipeline); }

std::string stage_place(size_t pipeline, size_t stage) {
  return fmt::format("{}.stages[{}]", pipeline_place(pipeline), stage);
}

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

void verify_cluster_hash(const Plan& plan, const Cluster& cluster) {
  if (!plan.cluster_hash.empty() && plan.cluster_hash != hash(cluster))
    refuse("cluster_hash",
           plan.cluster_hash.substr(0, 12) + "..., of another cluster",
           fmt::format("{}..., of this cluster: plan again", hash(cluster).substr(0, 12)));
}

void check_mesh(const Mesh& mesh, const std::string& place) {
  if (mesh.shape.empty() || mesh.axes.size() != mesh.shape.size())
    refuse(place + ".axes",
           fmt::format("{} names", mesh.axes.size()),
           fmt::format("one for each of the {} sizes of the shape", mesh.shape.size()));
  int64_t product = 1;
  for (int64_t size : mesh.shape) {
    if (size < 1 || size > kMaxLength / product)
      refuse(place + ".shape", list_text(mesh.shape), "positive sizes");
    product *= size;
  }
  if (product != static_cast<int64_t>(mesh.devices.size()))
    refuse(place + ".shape",
           list_text(mesh.shape),
           fmt::format("sizes whose product is the number of devices, {}", mesh.devices.size()));
}

void check_devices(const Plan& plan, const Cluster& cluster) {
  std::map<std::string, std::string> used;  // device -> place
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const Mesh& mesh = plan.pipelines[p].stages[s].mesh;
      const std::string place = stage_place(p, s) + ".mesh";
      check_mesh(mesh, place);
      for (size_t d = 0; d < mesh.devices.size(); ++d) {
        const std::string here = fmt::format("{}.devices[{}]", place, d);
        if (!find_device(cluster, mesh.devices[d])) {
          std::vector<std::string> names;
          for (const Device& device : cluster.devices) names.push_back(device.name);
          refuse(here,
                 quoted(mesh.devices[d]),
                 "a device of the cluster" + suggestion(mesh.devices[d], names));
        }
        const auto [first, is_new] = used.emplace(mesh.devices[d], here);
        if (!is_new)
          refuse(here, quoted(mesh.devices[d]), "a device that is not used in " + first->second);
      }
    }
}

void check_recompute(const std::vector<Stage>& stages, size_t pipeline) {
  for (size_t s = 0; s < stages.size(); ++s)
    if (std::find(kRecompute.begin(), kRecompute.end(), stages[s].recompute) == kRecompute.end())
      refuse(stage_place(pipeline, s) + ".recompute",
             quoted(stages[s].recompute),
             "\"none\", \"all\" or \"blocks\"");
}

// Checks that the stages cover the forward ops in order.
void check_stages(const std::vector<Stage>& stages, size_t pipeline, const Graph& graph) {
  if (!stages[0].first.empty())
    refuse(stage_place(pipeline, 0) + ".first",
           quoted(stages[0].first),
           "none: the first stage begins with the first op");
  if (!stages[0].rows.empty())
    refuse(stage_place(pipeline, 0) + ".rows",
           "shares",
           "none: the first stage has the lengths of the micro-batches");
  std::map<std::string, size_t> forward;  // forward op -> index
  if (stages.size() > 1) {
    const std::vector<std::string> names = stable_names(graph);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (graph.ops[i].phase == Phase::kForward) forward.emplace(names[i], i);
  }
  size_t before = 0;
  for (size_t s = 1; s < stages.size(); ++s) {
    const std::string place = stage_place(pipeline, s);
    const auto found = forward.find(stages[s].first);
    if (found == forward.end()) {
      std::vector<std::string> names;
      for (const auto& [name, op] : forward) names.push_back(name);
      refuse(place + ".first",
             stages[s].first.empty() ? "none" : quoted(stages[s].first),
             fmt::format(
                 "a forward op of graph \"{}\"{}", graph.name, suggestion(stages[s].first, names)));
    }
    if (found->second <= before)
      refuse(place + ".first",
             quoted(stages[s].first),
             fmt::format("an op after {}",
                         s == 1 ? "the first one"
                                : quoted(stages[s - 1].first) + ", where the stage before begins"));
    before = found->second;
    const auto devices = at(stages[s].mesh.shape[0]);
    if (!stages[s].rows.empty() && stages[s].rows.size() != devices)
      refuse(place + ".rows",
             fmt::format("{} shares", stages[s].rows.size()),
             fmt::format("{}, one for each device", devices));
  }
}

void check_schedule(const Pipeline& pipeline, size_t number) {
  if (const auto fault = find_fault(pipeline, size_of(pipeline)))
    refuse(fmt::format("{}.{}", pipeline_place(number), fault->key), fault->found, fault->expected);
}

void check_microbatch(const Microbatch& microbatch,
                      const Microbatch& first,
                      int64_t devices,
                      const std::string& place) {
  const auto& [rows, lengths] = microbatch;
  if (rows < 1 || rows > kMaxLength) refuse(place + ".rows", rows, "a positive number");
  if (lengths.empty() != first.lengths.empty())
    refuse(place + ".lengths", list_text(lengths), "lengths in all micro-batches or in none");
  if (lengths.empty()) return;
  if (static_cast<int64_t>(lengths.size()) != devices)
    refuse(place + ".lengths",
           fmt::format("{} lengths", lengths.size()),
           fmt::format("{}, one for each device", devices));
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 0 || lengths[i] > kMaxLength)
      refuse(fmt::format("{}.lengths[{}]", place, i), lengths[i], "a number that is not negative");
  if (sum_of(lengths) != rows)
    refuse(place + ".lengths",
           fmt::format("{}, which add up to {}", list_text(lengths), sum_of(lengths)),
           fmt::format("a sum of {} rows", rows));
}

void check_pipelines(const Plan& plan) {
  if (plan.pipelines.empty()) refuse("pipelines", "none", "at least one");
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    if (plan.pipelines[p].stages.empty())
      refuse(pipeline_place(p) + ".stages", "none", "at least one");
}

}  // namespace

void verify_rows(const Plan& plan) {
  check_pipelines(plan);
  if (plan.global_batch < 1 || plan.global_batch > kMaxLength)
    refuse("global_batch", plan.global_batch, "a positive number");
  std::vector<int64_t> rows;  // [pipeline]
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    rows.push_back(0);
    const auto& microbatches = plan.pipelines[p].microbatches;
    const int64_t devices = plan.pipelines[p].stages[0].mesh.shape[0];
    if (microbatches.empty()) refuse(pipeline_place(p) + ".microbatches", "none", "at least one");
    for (size_t m = 0; m < microbatches.size(); ++m) {
      const std::string place = fmt::format("{}.microbatches[{}]", pipeline_place(p), m);
      check_microbatch(microbatches[m], microbatches[0], devices, place);
      rows.back() += microbatches[m].rows;
    }
  }
  if (sum_of(rows) == plan.global_batch) return;
  const std::string expected = fmt::format("the global batch of {}", plan.global_batch);
  if (rows.size() == 1)
    refuse(pipeline_place(0) + ".microbatches",
           fmt::format("{} rows in all micro-batches together", rows[0]),
           expected);
  refuse("pipelines",
         fmt::format("{} rows in their micro-batches, {} together", list_text(rows), sum_of(rows)),
         expected);
}

namespace {

void check_coupling(const Plan& plan, const std::string& coupling) {
  size_t count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.microbatches.size();
  if (!coupling.empty() && count > 1 && !plan.loss_over_microbatches)
    refuse("pipelines",
           fmt::format("{} micro-batches", count),
           fmt::format("one, because {}", coupling));
}

void check_parts(const Plan& plan) {
  std::set<std::string> names;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const Part& part = plan.parts[i];
    const std::string place = fmt::format("parts[{}]", i);
    if (!is_part_name(part.name) || is_reserved_part(part.name))
      refuse(place + ".name",
             quoted(part.name),
             "a name of letters, digits, \"_\" and \"-\" other than \"x\", \"rows\" and \"even\"");
    if (!names.insert(part.name).second)
      refuse(place + ".name", quoted(part.name), "a name that no other part has");
    if (part.lengths.empty() == part.shares.empty())
      refuse(place, part.lengths.empty() ? "neither" : "both", "one of \"lengths\" and \"shares\"");
    for (int64_t length : part.lengths)
      if (length < 0 || length > kMaxLength)
        refuse(place + ".lengths", length, "a number that is not negative");
    for (double share : part.shares)
      if (!is_share(share)) refuse(place + ".shares", share, "0, or a number from 1e-9 to 1e9");
    if (!part.shares.empty() &&
        std::none_of(part.shares.begin(), part.shares.end(), [](double s) { return s > 0; }))
      refuse(place + ".shares", "zeros only", "one that is positive");
  }
}

std::vector<std::string> part_names(const Plan& plan, std::string_view always) {
  std::vector<std::string> names{std::string(always), std::string(kEven)};
  for (const Part& part : plan.parts) names.push_back(part.name);
  return names;
}

// Checks a part over pipelines instead of devices.
void check_owner(const Plan& plan, const std::string& place, const std::string& text) {
  const auto part = std::ranges::find(plan.parts, text, &Part::name);
  if (text == kAllOwners) {
    if (part != plan.parts.end()) refuse(place, quoted(text), "a part that has another name");
    return;
  }
  if (text == kEven) return;
  if (part == plan.parts.end())
    refuse(place,
           quoted(text),
           fmt::format("\"all\" or a part of the plan{}",
                       suggestion(text, part_names(plan, kAllOwners))));
  const size_t count = std::max(part->lengths.size(), part->shares.size());
  if (count != plan.pipelines.size())
    refuse(place,
           fmt::format("{}, a part of {}", quoted(text), count),
           fmt::format("a part of {}, one for each pipeline", plan.pipelines.size()));
  if (part->shares.empty() && sum_of(part->lengths) == 0)
    refuse(place,
           fmt::format("{}, whose lengths are all 0", quoted(text)),
           "an owner: a pipeline that holds something");
}

void check_owners(const Plan& plan, const Graph& graph) {
  if (plan.owners.empty()) return;
  if (plan.pipelines.size() == 1)
    refuse("owners", "owners", "none: the only pipeline updates all parameters");
  std::vector<std::string> names;
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kParameter) names.push_back(input.name);
  for (const auto& [key, text] : plan.owners) {
    const std::string place = fmt::format("owners[\"{}\"]", key);
    if (std::ranges::none_of(names, [&, k = &key](const auto& name) { return matches(*k, name); }))
      refuse(place,
             "a name that matches nothing",
             fmt::format("that of a parameter of graph \"{}\"{}; tied weights have one name",
                         graph.name,
                         suggestion(key, names)));
    check_owner(plan, place, text);
  }
}

// Checks the texts of one stage against their values.
class TextCheck {
 public:
  TextCheck(const Plan& plan, const Graph& graph, size_t pipeline, size_t stage)
      : plan_(plan),
        graph_(graph),
        pipeline_index_(pipeline),
        stage_index_(stage),
        pipeline_(&plan.pipelines[pipeline]),
        stage_(&pipeline_->stages[stage]) {
    for (const Part& part : plan.parts) parts_[part.name] = &part;
  }

  void run() const {
    check_placements("placements", stage_->placements, {InputKind::kParameter, InputKind::kBuffer});
    check_placements("updates", stage_->updates, {InputKind::kParameter});
    check_placements("batch", stage_->batch, {InputKind::kBatch});
    for (const auto& [key, text] : stage_->ops) check_op(key, text);
  }

 private:
  std::string place_of(const char* field, const std::string& key) const {
    return fmt::format("{}.{}[\"{}\"]", stage_place(pipeline_index_, stage_index_), field, key);
  }

  // Ops and their labels are known only after preparation and the expansion of composites:
  // complete() checks them.
  void check_op(const std::string& key, const std::string& text) const {
    const std::string place = place_of("ops", key);
    const auto axes = parse_choice_text(text);
    if (!axes) refuse(place, quoted(text), std::string(kChoiceForms));
    check_axes(axes->size(), place, text);
    for (size_t axis = 0; axis < axes->size(); ++axis)
      if ((*axes)[axis].kind == ChoiceText::Kind::kLabel ||
          (*axes)[axis].kind == ChoiceText::Kind::kComposite)
        check_part((*axes)[axis].part, axis, place, text);
  }

  void check_axes(size_t found, const std::string& place, const std::string& text) const {
    if (found != stage_->mesh.shape.size())
      refuse(place,
             fmt::format("{}, which is for {} axes", quoted(text), found),
             fmt::format("{}, as the mesh has", stage_->mesh.shape.size()));
  }

  void check_part(const std::string& name,
                  size_t axis,
                  const std::string& place,
                  const std::string& text) const {
    const auto devices = at(stage_->mesh.shape[axis]);
    if (name == kEven) return;
    if (name == kRows) {
      if (axis > 0)
        refuse(place,
               quoted(text),
               fmt::format("another part on axis \"{}\": rows are divided over the first axis",
                           stage_->mesh.axes[axis]));
      if (stage_index_ == 0 && pipeline_->microbatches[0].lengths.empty())
        refuse(place, quoted(text), "another part, or \"lengths\" in the micro-batches");
      if (stage_index_ > 0 && stage_->rows.empty())
        refuse(place, quoted(text), "another part, or \"rows\" in the stage");
      return;
    }
    const auto part = parts_.find(name);
    if (part == parts_.end()) {
      refuse(place,
             quoted(text),
             fmt::format("a part of the plan{}", suggestion(name, part_names(plan_, kRows))));
    }
    const size_t count = std::max(part->second->lengths.size(), part->second->shares.size());
    if (count != devices)
      refuse(
          place,
          fmt::format("{}, whose part is for {} devices", quoted(text), count),
          fmt::format("a part for {}, the size of axis \"{}\"", devices, stage_->mesh.axes[axis]));
  }

  void check_placements(const char* field,
                        const Choices& choices,
                        const std::vector<InputKind>& kinds) const {
    std::set<std::string> unmatched;
    for (const auto& [key, text] : choices) unmatched.insert(key);
    std::vector<std::string> names;
    const ChoiceFinder finder(choices);
    for (const Input& input : graph_.inputs) {
      if (std::find(kinds.begin(), kinds.end(), input.kind) == kinds.end()) continue;
      names.push_back(input.name);
      std::erase_if(unmatched, [&](const std::string& key) { return matches(key, input.name); });
      if (const auto* entry = finder.find_entry(input.name))
        check_placement(place_of(field, entry->first), entry->second, input);
    }
    if (unmatched.empty()) return;
    const std::string& key = *unmatched.begin();
    const std::string what = kinds.size() == 2               ? "parameter or buffer"
                             : kinds[0] == InputKind::kBatch ? "batch input"
                                                             : "parameter";
    refuse(place_of(field, key),
           key.find('*') == std::string::npos ? "a name that the graph does not have"
                                              : "a pattern that matches nothing",
           fmt::format("the name of a {} of graph \"{}\"{}; tied weights have one name",
                       what,
                       graph_.name,
                       suggestion(key, names)));
  }

  void check_placement(const std::string& place,
                       const std::string& text,
                       const Input& input) const {
    const auto axes = parse_placement_text(text);
    if (!axes) refuse(place, quoted(text), std::string(kPlacementForms));
    check_axes(axes->size(), place, text);
    const auto& shape = graph_.values[at(input.value)].type.shape;
    for (size_t axis = 0; axis < axes->size(); ++axis) {
      const PlacementText& placement = (*axes)[axis];
      if (placement.kind == PlacementText::Kind::kReplicated) continue;
      if (placement.kind == PlacementText::Kind::kPartialSum)
        refuse(place, quoted(text), "\"R\" or \"S(...)\": nothing is stored as a partial sum");
      check_part(placement.part, axis, place, text);
      const auto dim = at(placement.dim);
      if (dim >= shape.size())
        refuse(place,
               quoted(text),
               fmt::format("a dim below {}, the rank of \"{}\"", shape.size(), input.name));
      check_dim(place, text, input, shape[dim], placement);
    }
  }

  void check_dim(const std::string& place,
                 const std::string& text,
                 const Input& input,
                 const Size& size,
                 const PlacementText& placement) const {
    if (placement.part == kRows && size.is_constant())
      refuse(place,
             quoted(text),
             fmt::format("another part: dim {} of \"{}\" has no rows of the batch",
                         placement.dim,
                         input.name));
    const auto part = parts_.find(placement.part);
    if (part == parts_.end() || part->second->lengths.empty() || !size.is_constant()) return;
    const int64_t sum = sum_of(part->second->lengths);
    if (sum == 0 || size.coefficient % sum != 0)
      refuse(place,
             fmt::format("{}, whose lengths add up to {}", quoted(text), sum),
             fmt::format("a sum that divides dim {} of \"{}\", {}",
                         placement.dim,
                         input.name,
                         size.coefficient));
  }

  const Plan& plan_;
  const Graph& graph_;
  std::map<std::string, const Part*> parts_;
  size_t pipeline_index_, stage_index_;
  const Pipeline* pipeline_;
  const Stage* stage_;
};

}  // namespace

void verify_graph_hash(const Plan& plan, const Graph& graph) {
  if (!plan.graph_hash.empty() && plan.graph_hash != hash(graph))
    refuse(
        "graph_hash",
        plan.graph_hash.substr(0, 12) + "..., of another graph",
        fmt::format("{}..., of graph \"{}\": plan again", hash(graph).substr(0, 12), graph.name));
}

void verify(const Plan& plan,
            const Graph& graph,
            const Cluster& cluster,
            const std::string& coupling) {
  check_pipelines(plan);
  verify_graph_hash(plan, graph);
  verify_cluster_hash(plan, cluster);
  check_devices(plan, cluster);
  verify_types(plan, cluster);
  verify_rows(plan);
  check_coupling(plan, coupling);
  check_parts(plan);
  check_owners(plan, graph);
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    check_stages(pipeline.stages, p, graph);
    check_recompute(pipeline.stages, p);
    check_schedule(pipeline, p);
    for (size_t s = 0; s < pipeline.stages.size(); ++s) TextCheck(plan, graph, p, s).run();
  }
}

const Pipeline& only_pipeline(const Plan& plan) {
  MEDLEY_CHECK_EQ(plan.pipelines.size(), size_t{1});
  return plan.pipelines.front();
}

Pipeline& only_pipeline(Plan& plan) {
  MEDLEY_CHECK_EQ(plan.pipelines.size(), size_t{1});
  return plan.pipelines.front();
}

std::vector<Microbatch> microbatches_of(const Pipeline& pipeline, size_t stage) {
  std::vector<Microbatch> all = pipeline.microbatches;
  if (stage == 0) return all;
  const std::vector<double>& rows = pipeline.stages[stage].rows;
  for (Microbatch& each : all)
    each.lengths = rows.empty() ? std::vector<int64_t>{} : apportion(each.rows, rows);
  return all;
}

}  // namespace medley
