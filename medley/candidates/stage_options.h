#pragma once

// What a stage of a pipeline costs, and how its ops are divided best: SPMD synthesis of the ops of
// some layers on a mesh (synthesis/spmd_problem.h), lowered by itself and priced.
//
//   layer      0      1.0    1.1    2.0    2.1   ...  head          structures  e a b h
//   synthesis  e      a      b      -      -          h             once for each, mesh and rows
//   a range    the sum of its layers: what is sent inside it lies by rows, or whole
//
// A range chosen for a plan is synthesised as a whole. What is computed again rather than kept
// (prepare/recompute.h) changes no decision: solutions are priced again with it. Of a range,
// "blocks" keeps what comes into each layer, "all" what comes into the first one:
//
//            saved                   transient, and with all saved
//   none     sum of the layers'      the largest of a layer's
//   blocks   sum of what comes in    the largest of a layer's when it does all again
//   all      what comes in           the largest of a layer's, and what `none` saves
//
// Knows nothing of which ranges are good.

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/candidates/alike_stages.h"
#include "medley/chains/pipeline.h"
#include "medley/stages/layers.h"
#include "medley/synthesis/request.h"

namespace medley {

// Devices on which a stage runs: those of a pool, or some of them.
struct StageMesh {
  std::vector<int> devices;      // of the cluster
  std::vector<double> speeds{};  // [device] shares of the rows; empty: equal ones
  auto operator<=>(const StageMesh&) const = default;
};

// Returns the shares of the rows on the first axis of so many places.
std::vector<double> shares_of_rows(const StageMesh& mesh, int64_t places);

enum class StageStyle : uint8_t {
  kBest,    // found by synthesis: by rows, and otherwise where that is faster
  kData,    // whole on every device, rows divided
  kTensor,  // found by synthesis, every device has all rows
};

class OpCatalogue;  // synthesis/spmd_ops.h

// What a stage is to do in a step.
struct StageConfig {
  int64_t rows = 1, microbatches = 1;  // rows of each
  double byte_price = 0;               // in ticks per byte: the more, the less memory
  StageStyle style = StageStyle::kBest;
  std::string_view recompute = kRecompute[0];
  int in_flight = 1;  // micro-batches; told for "blocks", which depend on it
  // Devices of a second axis: neighbours that share the rows of a place on the first. kTensor:
  // found for them alone, with these rows; kBest: over both axes at once. 1: the mesh has one axis.
  int inner = 1;
  auto operator<=>(const StageConfig&) const = default;
};

struct StageQuery {
  int begin = 0, end = 0;  // layers
  StageMesh mesh;
  StageConfig config;
  auto operator<=>(const StageQuery&) const = default;
};

struct StageSolution {
  Stage stage;           // without its first op
  bool by_rows = false;  // the devices divide the rows
  StageOption option;
};

// What is offered on a mesh for some configuration: as it is, and with the devices of each node as
// a second axis where it has several. Private to StageSynthesis.
class StageOptionTable {
  friend class StageSynthesis;
  // What the layers take at a price, keeping all and doing all again, and the sums over ranges:
  // [first layer][number of layers], as far as there are solutions.
  struct Sums {
    std::vector<const StageOption*> layers;  // [layer] null: no solution
    std::vector<std::vector<StageOption>> ranges;
  };
  struct Prices {
    std::array<std::optional<Sums>, 3> kept, again;  // [price]
  };
  struct Offer {
    StageConfig config;
    Prices prices;
  };
  StageMesh mesh_;
  std::vector<Offer> each_;
};

class StageSynthesis {
 public:
  // Requires: `request` has costs and an analysis, which outlive this, as its graph and cluster do.
  StageSynthesis(const Request& request, const LayerOptions& options);

  const Layers& layers() const { return layers_; }
  // [layer] The first one of its structure.
  const std::vector<int>& like() const { return like_; }
  PreparedStages& stages() { return stages_; }

  // Layers as a whole. Nothing if no choices were found. The reference stays valid.
  const std::optional<StageSolution>& whole(const StageQuery& query);
  // Solves those that are not solved yet, on all cores.
  void solve_wholes(const std::vector<StageQuery>& queries);
  // What each takes in a step by the sum over its layers, on all cores; 0 where one has no
  // solution.
  std::vector<Nanoseconds> sums_of_layers(const std::vector<StageQuery>& queries);

  // Prices and recompute of `config` are not looked at. The reference stays valid.
  StageOptionTable& offers(const StageMesh& mesh, const StageConfig& config);

  // The sums over layers, at each price and recompute that makes a difference: a few options, none
  // of them worse than another in everything. What takes longer than `longest` for a micro-batch is
  // offered at no price only: all else is slower still.
  std::vector<StageOption> options(int begin,
                                   int end,
                                   StageOptionTable& offers,
                                   Nanoseconds longest = kLongest);
  // Precomputes, on all cores, what options() needs for these stages, for any layers.
  void solve_layers(const std::vector<std::pair<StageMesh, StageConfig>>& uses,
                    Nanoseconds longest = kLongest);

  // Whether layers as a whole do as well if the plan says nothing about their ops and parameters.
  // Requires: whole() has a solution.
  bool defaults_suffice(const StageQuery& query) const;

  // The same on nodes x devices, decided over both axes at once, which takes ten times as long as
  // what options() offers. Nothing on one node, or where a node's devices are no second axis.
  std::optional<StageConfig> on_nodes(const StageMesh& mesh, const StageConfig& config) const;

  // The price and the recompute that an option is for, with so many micro-batches in flight.
  static StageConfig config_of(const StageOption& option, StageConfig config, int in_flight);

  int num_syntheses() const { return num_syntheses_; }
  // Why the first of the stages is left out that cannot be lowered: they have no solution. Empty:
  // none is.
  const std::string& failure() const { return failure_; }

 private:
  struct Key {
    StageQuery query;
    bool layer = false;  // to be summed up with others
    auto operator<=>(const Key&) const = default;
  };
  // Of layers, what they compute.
  struct RangeKey {
    int begin = 0, end = 0;
    std::string_view recompute;
    int in_flight = 1;
    auto operator<=>(const RangeKey&) const = default;
  };
  static RangeKey range_key(const StageQuery& query);
  static Key plain(Key key);  // without recompute
  // What the devices of the second axis do of a stage for a mesh of two.
  static Key inner_key(Key key);
  void solve(const std::vector<Key>& keys);
  void solve_missing(std::vector<Key> keys);
  // A solution of what is the same but for names.
  struct Alike {
    const std::optional<StageSolution>& solution;
    Renaming names;
  };
  void note(const std::vector<std::optional<std::string>>& reasons);
  std::optional<Alike> find_alike(const Key& key) const;
  Completed complete(const RangeKey& key);
  // `catalogue`: of all that differ from it in the price of memory only; made when it is needed.
  std::optional<StageSolution> synthesise(const Key& key,
                                          std::optional<OpCatalogue>& catalogue) const;
  const StageSolution* of_lower_price(Key key, const Stage& decided) const;
  StageOption price_alone(const StageQuery& query, const Plan& plan) const;
  std::optional<Stage> decisions(const Key& key,
                                 const Plan& outline,
                                 std::optional<OpCatalogue>& catalogue) const;
  const std::optional<StageSolution>& solution(const Key& key);
  Key layer_key(int layer, const StageMesh& mesh, const StageConfig& config) const;
  bool has_plenty(const StageOption& option, const StageMesh& mesh) const;
  void offer(StageOption option, int id, std::vector<StageOption>& options) const;
  using Sums = StageOptionTable::Sums;
  using Offer = StageOptionTable::Offer;
  int second_axis(const StageMesh& mesh, const StageConfig& config) const;
  bool needs_prices(const StageMesh& mesh, Offer& offer, Nanoseconds longest);
  const std::vector<StageOption>& sums(std::optional<Sums>& sums,
                                       int begin,
                                       const StageMesh& mesh,
                                       const StageConfig& config);

  const Request request_;
  PreparedStages stages_;
  Layers layers_;
  std::vector<int> like_;  // [layer] the first one of its structure
  std::map<RangeKey, Completed> completed_;
  std::map<Key, std::optional<StageSolution>> solved_;
  std::string failure_;
  int num_syntheses_ = 0;  // of solved_, those that are no others' but for names
  std::map<std::pair<StageConfig, StageMesh>, StageOptionTable> offers_;
};

// In percent: stages as wholes take less time and memory than the sums over their layers, but
// rarely by more. What is slower by the sums is not looked at.
inline constexpr int64_t kSumsOff = 110;

// Of the layers of which chains are made.
inline constexpr LayerOptions kLayersOfChains{.per_block = 2};

// With such layers: what the request has of them already, or a new one. Requires: they differ from
// others in use in how many a block has in all.
std::shared_ptr<StageSynthesis> stages_of(const Request& request, const LayerOptions& layers);

// Those of a pipeline: what the request says, one where rows meet, else those of 1, 2, 4, ... rows,
// which meshes divide evenly, but no more than for so many pipelines are many.
std::vector<int64_t> microbatch_counts(const Request& request, int pipelines = 1);

// Returns the shortest step of the whole model as one stage on a mesh with so many micro-batches,
// by sums over layers, if it takes less than `below` and needs no more room for one in flight:
// whether a closer search (synthesis/spmd.h) can be of use. Requires: `stages` has the same graph
// and cluster.
std::optional<Nanoseconds> step_on_mesh(const Request& request,
                                        const StageMesh& mesh,
                                        const std::vector<int64_t>& counts,
                                        Bytes room,
                                        Nanoseconds below,
                                        StageSynthesis& stages);

}  // namespace medley
