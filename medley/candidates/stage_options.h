#pragma once

// Prices a stage of a pipeline and decides how to divide its ops: SPMD synthesis of some layers on
// a mesh (synthesis/spmd_problem.h), lowered by itself and priced.
//
//   layer      0      1.0    1.1    2.0    2.1   ...  head          structures  e a b h
//   synthesis  e      a      b      -      -          h             once for each, mesh and rows
//   a range    the sum of its layers: values between them are divided by rows, or whole
//
// A range chosen for a plan is synthesised as a whole. Recomputation (prepare/recompute.h) changes
// no decision: solutions are only priced again. "blocks" keeps the inputs of each layer of a range,
// "all" those of the first one:
//
//            saved                   transient, and with all saved
//   none     sum of the layers'      the largest of a layer's
//   blocks   sum of the inputs       the largest of a layer's that recomputes all
//   all      the inputs              the largest of a layer's, and all that `none` saves
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

#include "medley/candidates/isomorphic_stages.h"
#include "medley/chains/pipeline.h"
#include "medley/stages/layers.h"
#include "medley/synthesis/request.h"

namespace medley {

// Devices on which a stage runs: a pool or a part of it.
struct StageMesh {
  std::vector<int> devices;      // in the cluster
  std::vector<double> speeds{};  // [device] shares of the rows; empty: equal ones
  auto operator<=>(const StageMesh&) const = default;
};

// Returns the shares of the rows for `places` places on the first axis.
std::vector<double> shares_of_rows(const StageMesh& mesh, int64_t places);

enum class StageStyle : uint8_t {
  kBest,    // by synthesis: by rows, or otherwise if that is faster
  kData,    // replicated on every device, rows divided
  kTensor,  // by synthesis, every device has all rows
};

class OpCatalogue;  // synthesis/spmd_ops.h

// Configuration of a stage in a step.
struct StageConfig {
  int64_t rows = 1, microbatches = 1;  // rows of each
  double byte_price = 0;               // in ticks per byte; a higher price saves memory
  StageStyle style = StageStyle::kBest;
  std::string_view recompute = kRecompute[0];
  int in_flight = 1;  // micro-batches; set for "blocks", which depends on it
  // Size of the second mesh axis: neighbours that share the rows of a place on the first. kTensor:
  // solved for them alone; kBest: over both axes jointly. 1: a 1-D mesh.
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

// Stores the options of a mesh for a configuration: as it is and, with several nodes, with each
// node's devices as a second axis. Private to StageSynthesis.
class StageOptionTable {
  friend class StageSynthesis;
  // Options of layers at one price, all kept or all recomputed, and their sums over ranges: [first
  // layer][number of layers], as far as solutions exist.
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
  // Returns for each layer the first one of its structure.
  const std::vector<int>& like() const { return like_; }
  PreparedStages& stages() { return stages_; }

  // Returns the layers solved as a whole; nullopt without choices. The reference stays valid.
  const std::optional<StageSolution>& whole(const StageQuery& query);
  // Solves all unsolved queries on all cores.
  void solve_wholes(const std::vector<StageQuery>& queries);
  // Returns the time per step of each query by the sum over its layers, on all cores; 0 if a layer
  // has no solution.
  std::vector<Nanoseconds> sums_of_layers(const std::vector<StageQuery>& queries);

  // Returns the options on a mesh; ignores prices and recompute. The reference stays valid.
  StageOptionTable& offers(const StageMesh& mesh, const StageConfig& config);

  // Returns the Pareto-optimal sums over layers, at each price and recompute that differs. Options
  // slower than `longest` per micro-batch are offered at no price only: prices slow them further.
  std::vector<StageOption> options(int begin,
                                   int end,
                                   StageOptionTable& offers,
                                   Nanoseconds longest = kLongest);
  // Computes, on all cores, the inputs of options() for these stages and any layers.
  void solve_layers(const std::vector<std::pair<StageMesh, StageConfig>>& uses,
                    Nanoseconds longest = kLongest);

  // Returns whether the layers do as well if the plan omits their ops and parameters. Requires:
  // whole() has a solution.
  bool defaults_suffice(const StageQuery& query) const;

  // Returns the configuration decided over nodes x devices jointly, which takes ten times as long
  // as options(). Returns nullopt on one node, or without a second axis.
  std::optional<StageConfig> on_nodes(const StageMesh& mesh, const StageConfig& config) const;

  // Returns the price and recompute of an option, with `in_flight` micro-batches.
  static StageConfig config_of(const StageOption& option, StageConfig config, int in_flight);

  int num_syntheses() const { return num_syntheses_; }
  // Returns why the first stage that cannot be lowered was left out; "" if none was.
  const std::string& failure() const { return failure_; }

 private:
  struct Key {
    StageQuery query;
    bool layer = false;  // to be summed with others
    auto operator<=>(const Key&) const = default;
  };
  // Identifies the computation of a range of layers.
  struct RangeKey {
    int begin = 0, end = 0;
    std::string_view recompute;
    int in_flight = 1;
    auto operator<=>(const RangeKey&) const = default;
  };
  static RangeKey range_key(const StageQuery& query);
  static Key plain(Key key);  // without recompute
  // Returns the part of the second axis in a stage on a 2-D mesh.
  static Key inner_key(Key key);
  void solve(const std::vector<Key>& keys);
  void solve_missing(std::vector<Key> keys);
  // Solution of a stage that is identical but for names.
  struct Isomorphic {
    const std::optional<StageSolution>& solution;
    Renaming names;
  };
  void note(const std::vector<std::optional<std::string>>& reasons);
  std::optional<Isomorphic> find_isomorphic(const Key& key) const;
  Completed complete(const RangeKey& key);
  // `catalogue`: shared by all keys that differ only in memory price; built on first use.
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
  std::vector<int> like_;  // [layer] first one of its structure
  std::map<RangeKey, Completed> completed_;
  std::map<Key, std::optional<StageSolution>> solved_;
  std::string failure_;
  int num_syntheses_ = 0;  // entries of solved_ that are not renamed copies
  std::map<std::pair<StageConfig, StageMesh>, StageOptionTable> offers_;
};

// In percent. Stages as wholes rarely beat the sums over their layers by more, in time and memory.
// Slower sums are skipped.
inline constexpr int64_t kSumsOff = 110;

// Layer options of chains.
inline constexpr LayerOptions kLayersOfChains{.per_block = 2};

// Returns the request's synthesis for such layers, or a new one. Requires: layers in use differ in
// their number per block.
std::shared_ptr<StageSynthesis> stages_of(const Request& request, const LayerOptions& layers);

// Returns the request's counts; 1 if rows depend on each other; else those of 1, 2, 4, ... rows,
// which meshes divide evenly, up to the limit for `pipelines`.
std::vector<int64_t> microbatch_counts(const Request& request, int pipelines = 1);

// Returns the shortest step of the whole model as one stage on a mesh, by sums over layers. Returns
// nullopt unless it is below `below` and needs at most `room` with one micro-batch in flight.
// Only a result makes a closer search (synthesis/spmd.h) worthwhile. Requires: `stages` has the
// same graph and cluster.
std::optional<Nanoseconds> step_on_mesh(const Request& request,
                                        const StageMesh& mesh,
                                        const std::vector<int64_t>& counts,
                                        Bytes room,
                                        Nanoseconds below,
                                        StageSynthesis& stages);

}  // namespace medley
