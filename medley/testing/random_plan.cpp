#include "medley/testing/random_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/lower/lower.h"
#include "medley/sharding/coupling.h"
#include "medley/stages/stages.h"

namespace medley {
namespace {

class RandomPlanner {
 public:
  RandomPlanner(const Graph& graph,
                const std::vector<std::string>& devices,
                int64_t global_batch,
                uint64_t seed,
                const Optimizer& optimizer = {})
      : graph_(graph), devices_(devices), optimizer_(optimizer), random_(seed), seed_(seed) {
    plan_.global_batch = global_batch;
  }

  Plan run() {
    plan_.pipelines.resize(1);
    const std::vector<int64_t> shape = draw_shape(devices_.size());
    draw_microbatches(at(shape[0]), plan_.global_batch);
    add_stage("", shape, devices_);
    Prepared prepared = prepare(graph_, optimizer_);
    choose(prepared, factorize(prepared.graph));
    draw_recompute();
    with_numbers_of(seed_ + 2 + pipeline_, [&] { draw_interleave(); });
    return std::move(plan_);
  }

  Plan run_pipeline() {
    plan_.pipelines.resize(1);
    add_stages(draw_sizes(devices_.size(), 2), plan_.global_batch);
    finish();
    return std::move(plan_);
  }

  Plan run_pipelines() {
    const auto most = std::min<int64_t>(static_cast<int64_t>(devices_.size()), plan_.global_batch);
    const size_t count = at(std::min<int64_t>(2 + draw(3), most));
    std::vector<size_t> devices(count, 1);
    for (size_t i = count; i < devices_.size(); ++i) ++devices[at(draw(as_int(count)))];
    std::vector<int64_t> rows(count, 1);
    for (int64_t row = as_int(count); row < plan_.global_batch; ++row)
      ++rows[at(draw(as_int(count)))];
    plan_.pipelines.resize(count);
    for (pipeline_ = 0; pipeline_ < count; ++pipeline_)
      add_stages(draw_sizes(devices[pipeline_], 1), rows[pipeline_]);
    with_numbers_of(seed_ + 1, [&] { draw_owners(); });
    finish();
    return std::move(plan_);
  }

 private:
  int64_t draw(int64_t below) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(below));
  }
  static int64_t as_int(size_t size) { return static_cast<int64_t>(size); }
  Pipeline& pipeline() { return plan_.pipelines[pipeline_]; }
  Stage& stage() { return pipeline().stages[at_]; }
  bool has_rows(size_t axis) { return axis > 0 || at_ == 0 || !stage().rows.empty(); }

  // Adds one pipeline, on the next devices.
  void add_stages(const std::vector<size_t>& sizes, int64_t rows) {
    std::vector<std::vector<int64_t>> shapes;
    for (size_t size : sizes) shapes.push_back(draw_shape(size));
    draw_microbatches(at(shapes[0][0]), rows);
    const std::vector<std::string> names = stable_names(graph_);
    const std::vector<OpId> sequence = place(graph_).sequence;
    std::set<size_t> cuts;
    while (cuts.size() + 1 < sizes.size())
      cuts.insert(at(1 + draw(static_cast<int64_t>(sequence.size()) - 1)));
    auto cut = cuts.begin();
    for (size_t s = 0; s < sizes.size(); ++s) {
      const auto first = devices_.begin() + static_cast<std::ptrdiff_t>(used_);
      add_stage(s == 0 ? "" : names[at(sequence[*cut++])],
                shapes[s],
                {first, first + static_cast<std::ptrdiff_t>(sizes[s])});
      used_ += sizes[s];
      if (s > 0 && draw(2)) pipeline().stages[s].rows = draw_shares(at(shapes[s][0]));
    }
  }

  // Draws the stages' decisions, once their ops are known.
  void finish() {
    const std::vector<Completed> completed = complete_stages(analyse(graph_, optimizer_), plan_);
    size_t next = 0;
    for (pipeline_ = 0; pipeline_ < plan_.pipelines.size(); ++pipeline_) {
      for (at_ = 0; at_ < pipeline().stages.size(); ++at_, ++next)
        choose(*completed[next].prepared, *completed[next].factors);
      int64_t count = 1 + draw(2);
      std::vector<int64_t> counts;
      for (size_t s = 0; s < pipeline().stages.size(); ++s, count += draw(3))
        counts.push_back(count);
      pipeline().in_flight.assign(counts.rbegin(), counts.rend());
      with_numbers_of(seed_ + 1000 + pipeline_, [&] { draw_deferred_weights(); });
      draw_recompute();
      with_numbers_of(seed_ + 2 + pipeline_, [&] { draw_interleave(); });
    }
  }

  // Uses separate random numbers, so that the other draws stay unchanged.
  template <typename Draw>
  void with_numbers_of(uint64_t seed, const Draw& draw_more) {
    std::mt19937_64 others(seed);
    std::swap(random_, others);
    draw_more();
    std::swap(random_, others);
  }

  void draw_deferred_weights() {
    const size_t stages = pipeline().stages.size();
    if (stages > 1 && draw(2)) {
      pipeline().deferred_weights.assign(stages, 0);
      for (size_t s = 1; s < stages; ++s) pipeline().deferred_weights[s] = draw(4);
    }
  }

  void draw_interleave() {
    const int64_t count = as_int(pipeline().microbatches.size());
    if (pipeline().stages.size() == 1 && count > 1 && draw(2)) {
      pipeline().in_flight.clear();
      pipeline().interleave = 2 + draw(count - 1);
    }
  }

  void draw_owners() {
    if (plan_.pipelines.size() > 1 && draw(2)) {
      for (const char* name : {"owners", "others"})
        plan_.parts.push_back({name, {}, draw_shares(plan_.pipelines.size())});
      const std::vector<std::string> texts{
          "owners", "others", std::string(kEven), std::string(kAllOwners)};
      plan_.owners["*"] = texts[at(draw(as_int(texts.size())))];
      for (const Input& input : graph_.inputs)
        if (input.kind == InputKind::kParameter && draw(2))
          plan_.owners[input.name] = texts[at(draw(as_int(texts.size())))];
    }
  }

  void draw_microbatches(size_t devices, int64_t rows_in_all) {
    const bool several = row_coupling(graph_, factorize(graph_)).empty();
    int64_t left = rows_in_all;
    for (int64_t count = several ? 1 + draw(3) : 1; count > 0 && left > 0; --count) {
      const int64_t rows = count == 1 ? left : 1 + draw(left);
      pipeline().microbatches.push_back({rows, split(rows, devices)});
      left -= rows;
    }
  }

  void draw_recompute() {
    for (Stage& stage : pipeline().stages)
      stage.recompute = kRecompute[at(draw(kRecompute.size()))];
  }

  // Draws at least `least` stages.
  std::vector<size_t> draw_sizes(size_t devices, int64_t least) {
    std::vector<size_t> sizes;
    int64_t left = as_int(devices);
    while (left > 0) {
      sizes.push_back(at(1 + draw(sizes.empty() ? left - least + 1 : left)));
      left -= static_cast<int64_t>(sizes.back());
    }
    return sizes;
  }

  void add_stage(const std::string& first,
                 const std::vector<int64_t>& shape,
                 const std::vector<std::string>& devices) {
    const std::string suffix = suffix_of(pipeline().stages.size());
    Stage stage;
    stage.first = first;
    stage.mesh = {{"x"}, shape, devices};
    if (shape.size() > 1) stage.mesh.axes.push_back("y");
    for (const std::string& axis : stage.mesh.axes)
      for (const char* name : {"p", "q"})
        plan_.parts.push_back(
            {part_name(name, axis, suffix), {}, draw_shares(at(shape[axis == "x" ? 0 : 1]))});
    pipeline().stages.push_back(stage);
  }

  std::string suffix_of(size_t stage) const {
    const std::string own = stage == 0 ? "" : std::to_string(stage);
    return pipeline_ == 0 ? own : fmt::format("_{}_{}", pipeline_, stage);
  }

  static std::string part_name(const std::string& name,
                               const std::string& axis,
                               const std::string& suffix) {
    return name + (axis == "x" ? "" : axis) + suffix;
  }

  // Draws one axis, or two, of which one may be a single device.
  std::vector<int64_t> draw_shape(size_t devices) {
    const auto count = static_cast<int64_t>(devices);
    std::vector<std::vector<int64_t>> shapes{{count}};
    for (int64_t inner = 1; count > 1 && inner <= count; ++inner)
      if (count % inner == 0) shapes.push_back({count / inner, inner});
    return shapes[at(draw(static_cast<int64_t>(shapes.size())))];
  }

  std::vector<double> draw_shares(size_t devices) {
    std::vector<double> shares;
    for (size_t d = 0; d < devices; ++d) shares.push_back(static_cast<double>(draw(4)));
    shares[at(draw(static_cast<int64_t>(devices)))] += 1;
    return shares;
  }

  std::vector<int64_t> split(int64_t rows, size_t devices) {
    std::vector<int64_t> lengths(devices, 0);
    for (int64_t row = 0; row < rows; ++row) ++lengths[at(draw(static_cast<int64_t>(devices)))];
    return lengths;
  }

  std::string part_for(const Size& size, size_t axis) {
    if (size == Size::of(0) && axis == 0) return "rows";
    const std::string suffix = suffix_of(at_);
    const std::string& name = stage().mesh.axes[axis];
    return std::vector<std::string>{
        part_name("p", name, suffix), part_name("q", name, suffix), "even"}[at(draw(3))];
  }

  // Joins the texts that `one_axis` draws, or returns nothing if there are none.
  template <typename OneAxis>
  std::optional<std::string> on_all_axes(const OneAxis& one_axis) {
    std::string all;
    for (size_t axis = 0; axis < stage().mesh.axes.size(); ++axis) {
      const std::optional<std::string> text = one_axis(axis);
      if (!text) return std::nullopt;
      all += (axis == 0 ? "" : " x ") + *text;
    }
    return all;
  }

  // Draws choices that are legal for views of parameters and for their repetitions in the backward
  // phase.
  void choose(const Prepared& prepared, const Factors& factors) {
    for (const Input& input : prepared.graph.inputs)
      if (input.kind == InputKind::kParameter) {
        const auto placement = [&](size_t axis) {
          return random_state(factors, input.value, axis);
        };
        stage().placements[input.name] = *on_all_axes(placement);
        stage().updates[input.name] = *on_all_axes(placement);
      }
    for (size_t i = 0; i < prepared.graph.ops.size(); ++i) {
      const std::string& name = prepared.names[i];
      const OpRole::Kind role = prepared.roles[i].kind;
      if (role == OpRole::Kind::kUpdate || draw(4) == 0 || stage().ops.contains(name)) continue;
      // Follows the share that it squares.
      if (role == OpRole::Kind::kNorm && find_share(prepared, static_cast<OpId>(i))) continue;
      if (std::optional<std::string> choice = on_all_axes([&](size_t axis) {
            return random_choice(factors, prepared.graph, static_cast<OpId>(i), axis);
          }))
        stage().ops[name] = *choice;
    }
  }

  std::optional<std::string> random_state(const Factors& factors, ValueId value, size_t axis) {
    std::vector<std::pair<size_t, size_t>> places;
    const auto& dims = factors.values[at(value)];
    for (size_t d = 0; d < dims.size(); ++d)
      for (size_t f = 0; f < dims[d].size(); ++f) places.emplace_back(d, f);
    const auto pick = at(draw(static_cast<int64_t>(places.size()) + 1));
    if (pick == places.size()) return "R";
    const auto [dim, factor] = places[pick];
    return "S(" + std::to_string(dim) + "." + std::to_string(factor) + ", " +
           part_for(Size(1), axis) + ")";
  }

  std::optional<std::string> random_choice(const Factors& factors,
                                           const Graph& graph,
                                           OpId op,
                                           size_t axis) {
    const std::shared_ptr<const Instance>& instance = factors.instances[at(op)];
    std::vector<std::string> texts{"replicate"};
    if (!instance) return std::nullopt;
    for (size_t group = 0; group < instance->linear.size(); ++group)
      texts.push_back(
          to_string(factors, op, Choice{ChoiceKind::kLinear, {}, -1, static_cast<int>(group)}, {}));
    for (size_t label = 0; label < instance->labels.size(); ++label) {
      const auto& extents = factors.labels[at(op)][label];
      for (size_t factor = 0; factor < extents.size(); ++factor) {
        const Choice choice{
            ChoiceKind::kCut, {static_cast<int>(label), static_cast<int>(factor)}, 0, -1};
        const Size& size = factors.extent_sizes[at(extents[factor])];
        if (!size.is_constant() && (size != Size::of(0) || !has_rows(axis))) continue;
        const std::string text = to_string(factors, op, choice, {part_for(size, axis)});
        if (is_legal(factors, op, choice)) texts.push_back(text);
        if (instance->labels[label].composite && has_expansion(graph.ops[at(op)].name))
          texts.push_back("composite " + text);
      }
    }
    return texts[at(draw(static_cast<int64_t>(texts.size())))];
  }

  const Graph& graph_;
  const std::vector<std::string>& devices_;
  const Optimizer optimizer_;
  std::mt19937_64 random_;
  const uint64_t seed_;
  Plan plan_;
  size_t used_ = 0;               // devices
  size_t pipeline_ = 0, at_ = 0;  // the stage of the current choices
};

}  // namespace

Plan random_plan(const Graph& graph,
                 const std::vector<std::string>& devices,
                 int64_t global_batch,
                 uint64_t seed) {
  return RandomPlanner(graph, devices, global_batch, seed).run();
}

Plan random_pipeline(const Graph& graph,
                     const std::vector<std::string>& devices,
                     int64_t global_batch,
                     uint64_t seed) {
  MEDLEY_CHECK(devices.size() > 1);
  return RandomPlanner(graph, devices, global_batch, seed).run_pipeline();
}

Plan random_pipelines(const Graph& graph,
                      const std::vector<std::string>& devices,
                      int64_t global_batch,
                      uint64_t seed) {
  return random_pipelines_for({}, graph, devices, global_batch, seed);
}

Plan random_pipelines_for(const Optimizer& optimizer,
                          const Graph& graph,
                          const std::vector<std::string>& devices,
                          int64_t global_batch,
                          uint64_t seed) {
  MEDLEY_CHECK(devices.size() > 1 && global_batch > 1);
  return RandomPlanner(graph, devices, global_batch, seed, optimizer).run_pipelines();
}

}  // namespace medley
