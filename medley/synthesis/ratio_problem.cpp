#include "medley/synthesis/ratio_problem.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/lower/complete.h"
#include "medley/memory/memory.h"
#include "medley/program/walk.h"
#include "medley/sharding/parts.h"
#include "medley/sim/prices.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

using Shares = std::vector<std::vector<double>>;  // [part][device]

bool has_rows(const Plan& plan) {
  const auto& microbatches = only_pipeline(plan).microbatches;
  return !microbatches.empty() && !microbatches[0].lengths.empty();
}

std::vector<double> normalised(std::vector<double> numbers) {
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  MEDLEY_CHECK(sum > 0);
  for (double& each : numbers) each /= sum;
  return numbers;
}

// Returns micro-batches with equal rows in another division.
std::vector<Microbatch> divided(std::vector<Microbatch> microbatches,
                                const std::vector<double>& shares) {
  for (Microbatch& microbatch : microbatches)
    microbatch.lengths = apportion(microbatch.rows, shares);
  return microbatches;
}

// One step of the program, in call order.
struct WorkItem {
  const Segment* segment = nullptr;  // null: a wait or a post, by `wait`
  bool wait = false;
  int communication = -1;
  int microbatch = 0;
};

std::vector<WorkItem> work_of(const LoweredStage& stage) {
  std::vector<WorkItem> items;
  walk(stage,
       Visitor{[&](const Call& call, Position, const Segment& segment) {
                 items.push_back({&segment, false, -1, call.microbatch});
               },
               [&](const Call& call, Position, const Post& post) {
                 items.push_back({nullptr, false, post.communication, call.microbatch});
               },
               [&](const Call& call, Position, const Wait& wait) {
                 items.push_back({nullptr, true, wait.communication, call.microbatch});
               }});
  return items;
}

// A wait with exposed communication.
struct Barrier {
  size_t item = 0;
  double exposed = 0;  // seconds
  double whole = 0;    // seconds of the communication
};

class Extraction {
 public:
  Extraction(const Plan& plan, const Program& program, const CostModel& costs)
      : plan_(plan),
        stage_(program.stages[0]),
        costs_(costs),
        segments_(stage_, costs),
        communications_(stage_, costs),
        items_(work_of(stage_)),
        shares_(present_shares(plan)),
        has_rows_(has_rows(plan)) {
    MEDLEY_CHECK_EQ(program.stages.size(), size_t{1});
    MEDLEY_CHECK_EQ(stage_.mesh.size(), size_t{1});
    for (size_t d = 0; d < num_devices(); ++d) {
      const std::string& kind = costs.cluster().kind(stage_.devices[d]).name;
      const auto [found, is_new] = kinds_.try_emplace(kind, examples_.size());
      if (is_new) examples_.push_back(d);
      kind_of_.push_back(found->second);
    }
    set_shares(shares_);
    present_ = stage_.tables;
  }

  RatioProblem run() {
    RatioProblem problem{.devices = static_cast<int>(num_devices()),
                         .parts = static_cast<int>(shares_.size())};
    find_barriers();
    fit_devices();
    add_segments(problem);
    add_memory(problem);
    add_exchanges(problem);
    return problem;
  }

 private:
  size_t num_devices() const { return stage_.devices.size(); }

  // Returns the index into the parts of the symbol table, which also has "even".
  int symbol_part(size_t part) const {
    return static_cast<int>(has_rows_ ? (part == 0 ? 0 : part + 1) : part + 1);
  }

  // Fills the tables of one device, or of all.
  void set_shares(const Shares& shares, std::optional<size_t> only = std::nullopt) {
    std::vector<Part> parts = stage_.symbols.parts();
    std::vector<Microbatch> microbatches = only_pipeline(plan_).microbatches;
    for (size_t k = 0; k < shares.size(); ++k) {
      if (shares[k] == shares_[k]) continue;
      if (has_rows_ && k == 0) {
        microbatches = divided(std::move(microbatches), shares[k]);
        continue;
      }
      parts[at(symbol_part(k))].lengths.clear();
      parts[at(symbol_part(k))].shares = shares[k];
    }
    stage_.symbols.set_parts(std::move(parts));
    int64_t row = 0;
    for (size_t m = 0; m < microbatches.size(); ++m) {
      if (only)
        stage_.tables[m][*only] = stage_.symbols.table(
            microbatches[m], m, row, plan_.global_batch, static_cast<int>(*only));
      else
        stage_.tables[m] = stage_.symbols.tables(microbatches[m], m, row, plan_.global_batch);
      row += microbatches[m].rows;
    }
  }

  // Returns the lengths of this device's shards under a part, those of the largest extent first;
  // empty if no extent uses the part.
  std::vector<std::pair<Symbol, Size>> lengths_of(size_t part, size_t device) const {
    const std::vector<int64_t>& table = stage_.tables[0][device];
    auto lengths = stage_.symbols.lengths_under(symbol_part(part));
    std::stable_sort(lengths.begin(), lengths.end(), [&](const auto& a, const auto& b) {
      return evaluate(a.second, table) > evaluate(b.second, table);
    });
    return lengths;
  }

  // Returns the share of a device after rounding, over all micro-batches.
  double rounded_share(size_t part, size_t device) const {
    const auto [symbol, whole] = lengths_of(part, device)[0];
    int64_t length = 0, sum = 0;
    for (const auto& tables : stage_.tables) {
      length += tables[device][at(symbol)];
      sum += evaluate(whole, tables[device]);
    }
    return sum == 0 ? 0 : static_cast<double>(length) / static_cast<double>(sum);
  }

  // Returns shares in which `device` has more of a part (less if it has most), so that lengths
  // differ by some units of the smallest extent. The others share the rest in proportion. Returns
  // nullopt if it has all.
  std::optional<Shares> moved(size_t part, size_t device) const {
    const std::vector<double>& now = shares_[part];
    const auto cut = lengths_of(part, device);
    if (cut.empty() || now.size() < 2) return std::nullopt;
    const int64_t smallest = evaluate(cut.back().second, stage_.tables[0][device]);
    const double share = std::max(now[device], 0.5 / static_cast<double>(now.size()));
    const double units = share * static_cast<double>(std::max<int64_t>(1, smallest));
    const double factor = std::clamp(1 + 4 / units, 1.25, 4.0);
    const double then = share * factor < 1 ? share * factor : share / factor;
    Shares shares = shares_;
    const double rest = 1 - now[device];
    for (size_t d = 0; d < now.size(); ++d)
      shares[part][d] = d == device ? then
                        : rest > 0  ? now[d] * (1 - then) / rest
                                    : (1 - then) / static_cast<double>(now.size() - 1);
    return shares;
  }

  double seconds(const WorkItem& item, size_t device) {
    return to_seconds(
               segments_.price(*item.segment, item.microbatch, static_cast<int>(device)).time)
        .value;
  }

  double seconds(const Communication& communication, int microbatch) {
    std::vector<int> members(num_devices());
    std::iota(members.begin(), members.end(), 0);
    const Collective collective = communications_.collective(communication, microbatch, members);
    const auto [known, is_new] = collectives_.try_emplace({collective.kind, collective.lengths});
    if (is_new) known->second = to_seconds(costs_.collective(collective).value).value;
    return known->second;
  }

  // Follows the program at the present lengths; every segment takes as long as on the slowest
  // device type.
  void find_barriers() {
    std::vector<double> spent(examples_.size(), 0);  // since the last barrier
    struct Posted {
      double done = 0, takes = 0;
    };
    std::vector<std::deque<Posted>> posted(stage_.communications.size());  // oldest first
    double start = 0, network_free = 0;
    const auto clock = [&] { return start + *std::max_element(spent.begin(), spent.end()); };
    for (size_t i = 0; i < items_.size(); ++i) {
      const WorkItem& item = items_[i];
      if (item.segment) {
        for (size_t q = 0; q < examples_.size(); ++q) spent[q] += seconds(item, examples_[q]);
        continue;
      }
      std::deque<Posted>& all = posted[at(item.communication)];
      if (!item.wait) {
        const double takes =
            seconds(stage_.communications[at(item.communication)], item.microbatch);
        network_free = std::max(network_free, clock()) + takes;
        all.push_back({network_free, takes});
        continue;
      }
      const auto [done, takes] = all.front();
      all.pop_front();
      if (done <= clock()) continue;
      barriers_.push_back({i, done - clock(), takes});
      start = done;
      std::fill(spent.begin(), spent.end(), 0);
    }
  }

  // Times between barriers and memory of the devices of one type at present and moved lengths:
  // [between barriers] and bytes.
  struct Reading {
    std::vector<double> seconds;
    double bytes = 0;
  };

  Reading read(size_t device) {
    Reading reading;
    reading.seconds.assign(barriers_.size() + 1, 0);
    size_t between = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (between < barriers_.size() && barriers_[between].item == i) ++between;
      if (items_[i].segment) reading.seconds[between] += seconds(items_[i], device);
    }
    reading.bytes = static_cast<double>(memory_use(stage_, static_cast<int>(device)).peak);
    return reading;
  }

  // constant + sum over parts of slope * share
  struct Line {
    double constant = 0;
    std::vector<double> slope = {};  // [part]

    // Fits another point in which only the share of one part differs. Decreases with growing shares
    // are rounding errors.
    void lean(size_t part, double before, double after, double more) {
      slope[part] = std::max(0.0, more / (after - before));
      constant = std::max(0.0, constant - slope[part] * before);
    }
  };
  struct Fit {
    std::vector<Line> seconds;  // [between barriers]
    Line bytes;
  };

  void fit_devices() {
    for (size_t device : examples_) {
      const Reading present = read(device);
      const std::vector<double> level(shares_.size(), 0);
      Fit fit{.seconds = {}, .bytes = {present.bytes, level}};
      for (double each : present.seconds) fit.seconds.push_back({each, level});
      for (size_t k = 0; k < shares_.size(); ++k) {
        const std::optional<Shares> shares = moved(k, device);
        if (!shares) continue;
        const double before = rounded_share(k, device);
        set_shares(*shares, device);
        const double after = rounded_share(k, device);
        if (after != before) {
          const Reading then = read(device);
          for (size_t s = 0; s < fit.seconds.size(); ++s)
            fit.seconds[s].lean(k, before, after, then.seconds[s] - present.seconds[s]);
          fit.bytes.lean(k, before, after, then.bytes - present.bytes);
        }
        stage_.tables = present_;
      }
      fits_.push_back(std::move(fit));
    }
  }

  const Fit& fit_of(size_t device) const { return fits_[kind_of_[device]]; }

  void add_segments(RatioProblem& problem) const {
    for (size_t s = 0; s <= barriers_.size(); ++s) {
      RatioSegment segment;
      segment.slope.resize(shares_.size());
      for (size_t d = 0; d < num_devices(); ++d) {
        const Line& line = fit_of(d).seconds[s];
        segment.constant.push_back(line.constant);
        for (size_t k = 0; k < shares_.size(); ++k) segment.slope[k].push_back(line.slope[k]);
      }
      problem.segments.push_back(std::move(segment));
    }
  }

  // Lengths are integers, so memory for one more unit of every part is reserved.
  void add_memory(RatioProblem& problem) const {
    problem.bytes_per_share.resize(shares_.size());
    for (size_t d = 0; d < num_devices(); ++d) {
      const Line& line = fit_of(d).bytes;
      problem.bytes.push_back(line.constant);
      for (size_t k = 0; k < shares_.size(); ++k)
        if (const auto cut = lengths_of(k, d); !cut.empty())
          problem.bytes[d] += line.slope[k] / static_cast<double>(std::max<int64_t>(
                                                  1, evaluate(cut[0].second, present_[0][d])));
      problem.capacity.push_back(costs_.cluster().kind(stage_.devices[d]).memory_bytes);
      for (size_t k = 0; k < shares_.size(); ++k)
        problem.bytes_per_share[k].push_back(line.slope[k]);
    }
  }

  // The slope of a communication is its growth in time with the largest share of a part.
  void add_exchanges(RatioProblem& problem) {
    std::vector<Line> lines;
    for (const Barrier& barrier : barriers_)
      lines.push_back({barrier.whole, std::vector<double>(shares_.size(), 0)});
    for (size_t k = 0; k < shares_.size(); ++k) {
      const auto largest = std::max_element(shares_[k].begin(), shares_[k].end());
      const auto device = at(largest - shares_[k].begin());
      const std::optional<Shares> shares = moved(k, device);
      if (!shares) continue;
      const double before = rounded_share(k, device);
      set_shares(*shares);
      const double after = rounded_share(k, device);
      for (size_t b = 0; b < barriers_.size() && after != before; ++b) {
        const WorkItem& item = items_[barriers_[b].item];
        lines[b].lean(k,
                      before,
                      after,
                      seconds(stage_.communications[at(item.communication)], item.microbatch) -
                          barriers_[b].whole);
      }
      stage_.tables = present_;
    }
    for (size_t b = 0; b < barriers_.size(); ++b) {
      // The exposed part, up to the whole, is proportional to the communication.
      const auto [item, exposed, whole] = barriers_[b];
      const double fraction = whole > 0 ? std::min(1.0, exposed / whole) : 0;
      RatioExchange exchange{.constant = std::max(0.0, exposed - whole), .slope = {}};
      exchange.constant += fraction * lines[b].constant;
      for (double slope : lines[b].slope) exchange.slope.push_back(fraction * slope);
      problem.exchanges.push_back(std::move(exchange));
    }
  }

  const Plan& plan_;
  LoweredStage stage_;  // its tables get other lengths temporarily
  const CostModel& costs_;
  SegmentPrices segments_;
  CommunicationPrices communications_;
  const std::vector<WorkItem> items_;
  const Shares shares_;
  const bool has_rows_;
  std::vector<std::vector<std::vector<int64_t>>> present_;  // tables
  std::map<std::string, size_t> kinds_;
  std::vector<size_t> kind_of_;   // [device]
  std::vector<size_t> examples_;  // [type] its first device
  std::vector<Barrier> barriers_;
  std::vector<Fit> fits_;  // [type]
  std::map<std::pair<CommunicationKind, std::vector<int64_t>>, double> collectives_;
};

}  // namespace

std::vector<std::string> ratio_parts(const Plan& plan) {
  std::vector<std::string> names;
  if (has_rows(plan)) names.emplace_back(kRows);
  for (const Part& part : plan.parts) names.push_back(part.name);
  return names;
}

std::vector<std::vector<double>> present_shares(const Plan& plan) {
  Shares shares;
  if (has_rows(plan)) {
    const auto& microbatches = only_pipeline(plan).microbatches;
    std::vector<double> rows(microbatches[0].lengths.size(), 0);
    for (const Microbatch& microbatch : microbatches)
      for (size_t d = 0; d < rows.size(); ++d)
        rows[d] += static_cast<double>(microbatch.lengths[d]);
    shares.push_back(normalised(std::move(rows)));
  }
  for (const Part& part : plan.parts)
    shares.push_back(normalised(
        part.lengths.empty() ? part.shares
                             : std::vector<double>(part.lengths.begin(), part.lengths.end())));
  return shares;
}

RatioProblem ratio_problem(const Plan& plan, const Program& program, const CostModel& costs) {
  return Extraction(plan, program, costs).run();
}

Plan with_shares(const Plan& plan, const std::vector<double>& shares) {
  Shares all = present_shares(plan);
  const std::vector<std::string> parts = ratio_parts(plan);
  for (size_t k = 0; k < parts.size(); ++k)
    if (parts[k] != kMemoryPart) all[k] = shares;
  return with_ratios(plan, all);
}

Plan with_ratios(const Plan& plan, const std::vector<std::vector<double>>& shares) {
  MEDLEY_CHECK_EQ(shares.size(), ratio_parts(plan).size());
  // Tiny shares are rounded to 0.
  Shares rounded = shares;
  for (auto& part : rounded)
    for (double& share : part)
      if (share < 1e-6) share = 0;
  Plan result = plan;
  size_t next = 0;
  if (has_rows(plan)) {
    auto& microbatches = only_pipeline(result).microbatches;
    microbatches = cut_into_microbatches(apportion(plan.global_batch, rounded[next++]),
                                         static_cast<int64_t>(microbatches.size()));
  }
  for (Part& part : result.parts) {
    const std::vector<double>& now = rounded[next++];
    if (part.lengths.empty()) {
      part.shares = now;
      continue;
    }
    part.lengths =
        apportion(std::accumulate(part.lengths.begin(), part.lengths.end(), int64_t{0}), now);
  }
  return result;
}

}  // namespace medley
