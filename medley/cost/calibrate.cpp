#include "medley/cost/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/network/flow_engine.h"

namespace medley {
namespace {

constexpr int kIterations = 12;
constexpr double kSettled = 1e-7;     // relative change at which iterations end
constexpr double kPrior = 1e-7;       // weight of the initial figures
constexpr double kLargeError = 0.1;   // relative; beyond, errors count linearly
constexpr double kKeep = 1e-3;        // smaller relative changes are ignored
constexpr double kBetter = 0.01;      // least relative gain in loss of an algorithm
constexpr double kLeastShare = 1e-3;  // of an inverse bandwidth, per iteration
constexpr double kSmallLatency = 1e-6;
constexpr size_t kMostSimulated = 50'000;  // messages per iteration; above it, estimates
constexpr size_t kMostTried = 5'000;       // the same while comparing algorithms
constexpr size_t kMostMessages = 500'000;  // above it, measurements are sampled evenly

// Per network, in seconds: latency, inverse bandwidth of its ports and of its trunk.
constexpr size_t kFigures = 3;
using Figures = std::vector<double>;

struct Measured {
  Collective collective;
  std::vector<Message> messages;
  double seconds = 0;
  bool simulated = false;
};

bool is_of_a_library(const CollectiveMeasurement& measurement) {
  return measurement.algorithm == "backend";
}

const Algorithm& algorithm_of(const CollectiveMeasurement& measurement,
                              const Collective& collective,
                              const LibraryAlgorithms& library) {
  if (is_of_a_library(measurement)) return *library.at(collective.kind);
  for (const Algorithm& each : algorithms())
    if (each.name == measurement.algorithm && fits(each, collective.kind)) return each;
  throw Error(Blame::kCaller,
              fmt::format("profile: collectives: found no algorithm \"{}\" for {}",
                          measurement.algorithm,
                          measurement.collective));
}

// Returns nullopt for devices outside the cluster.
std::optional<Measured> understood(const CollectiveMeasurement& measurement,
                                   const Topology& topology,
                                   const LibraryAlgorithms& library) {
  Measured result;
  result.collective.kind = find_communication_kind(measurement.collective).value();
  result.collective.lengths = measurement.lengths;
  result.seconds = to_seconds(measurement.time).value;
  for (const std::string& name : measurement.devices) {
    const auto device = find_device(topology.cluster(), name);
    if (!device) return std::nullopt;
    result.collective.devices.push_back(*device);
  }
  result.messages = messages(algorithm_of(measurement, result.collective, library),
                             result.collective,
                             group_by_node(result.collective, topology));
  if (result.messages.empty() || result.seconds <= 0) return std::nullopt;
  return result;
}

std::vector<Measured> understood(std::span<const CollectiveMeasurement> measurements,
                                 const Topology& topology,
                                 const LibraryAlgorithms& library,
                                 size_t most_simulated) {
  std::vector<Measured> all;
  size_t total = 0;
  for (const CollectiveMeasurement& each : measurements)
    if (auto one = understood(each, topology, library)) {
      total += one->messages.size();
      all.push_back(std::move(*one));
    }
  const size_t stride = (total + kMostMessages - 1) / kMostMessages;
  std::vector<Measured> some;
  size_t simulated = 0;
  for (size_t i = 0; i < all.size(); i += stride) {
    Measured& one = all[i];
    one.simulated = simulated + one.messages.size() <= most_simulated;
    if (one.simulated) simulated += one.messages.size();
    some.push_back(std::move(one));
  }
  return some;
}

Figures figures_of(const Cluster& cluster) {
  Figures figures;
  for (const Network& each : cluster.networks)
    figures.insert(figures.end(),
                   {each.latency, 1 / each.bandwidth, each.trunk ? 1 / *each.trunk : 0});
  return figures;
}

Cluster with(Cluster cluster, const Figures& figures) {
  for (size_t n = 0; n < cluster.networks.size(); ++n) {
    Network& network = cluster.networks[n];
    network.latency = figures[kFigures * n];
    network.bandwidth = 1 / figures[kFigures * n + 1];
    if (network.trunk) network.trunk = 1 / figures[kFigures * n + 2];
  }
  return cluster;
}

struct Slowest {  // message of a round
  double seconds = -1, bytes = 0;
  size_t message = 0;
  int link = -1;
};

// Returns how often the time of the messages contains each figure, as estimate() adds it up.
Figures row_of(const Measured& measured, const Topology& topology) {
  Figures row(kFigures * topology.cluster().networks.size());
  std::vector<double> load(topology.links().size());
  const std::vector<Message>& messages = measured.messages;
  const auto route = [&](const Message& message) {
    const std::vector<int>& devices = measured.collective.devices;
    return topology.route(devices.at(at(message.from)), devices.at(at(message.to)));
  };
  for (size_t first = 0, end; first < messages.size(); first = end) {
    for (end = first; end < messages.size() && messages[end].round == messages[first].round; ++end)
      for (const Route along = route(messages[end]); int link : along.span())
        load[at(link)] += static_cast<double>(messages[end].bytes);
    Slowest slowest;
    for (size_t i = first; i < end; ++i) {
      const Route along = route(messages[i]);
      for (int link : along.span()) {
        const double bytes = load[at(link)];
        const double seconds =
            to_seconds(along.latency).value + bytes / topology.links()[at(link)].bandwidth.value;
        if (seconds > slowest.seconds) slowest = {seconds, bytes, i, link};
      }
    }
    for (size_t i = first; i < end; ++i)
      for (const Route along = route(messages[i]); int link : along.span()) load[at(link)] = 0;
    if (slowest.link < 0) continue;
    const Message& message = messages[slowest.message];
    const std::vector<int>& devices = measured.collective.devices;
    const auto network =
        at(topology.path(devices.at(at(message.from)), devices.at(at(message.to))).network);
    const std::string& link = topology.links()[at(slowest.link)].name;
    const bool is_trunk = link.find(":trunk:") != std::string::npos;
    row[kFigures * network] += 1;
    row[kFigures * network + (is_trunk ? 2 : 1)] += slowest.bytes;
  }
  return row;
}

double dot(const Figures& a, const Figures& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Solves a x = b by elimination. Requires: symmetric, positive definite.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k)
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

// Normal equations in figures relative to the present ones. Figures that would fall below their
// least are fixed there, and the rest is solved again.
class LeastSquares {
 public:
  explicit LeastSquares(const Figures& now) : now_(now), scale_(now), least_(now.size()) {
    for (size_t i = 0; i < now.size(); ++i)
      if (i % kFigures == 0)
        scale_[i] = std::max(now[i], kSmallLatency);
      else
        least_[i] = kLeastShare;
    matrix_.assign(now.size(), std::vector<double>(now.size()));
    right_.assign(now.size(), 0);
    for (size_t i = 0; i < now.size(); ++i) {
      matrix_[i][i] = kPrior;
      right_[i] = scale_[i] > 0 ? kPrior * now[i] / scale_[i] : 0;
    }
  }

  // Adds the equation row * figures = `value`.
  void add(const Figures& row, double value, double weight) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] == 0) continue;
      right_[i] += weight * row[i] * scale_[i] * value;
      for (size_t j = 0; j < row.size(); ++j)
        matrix_[i][j] += weight * row[i] * scale_[i] * row[j] * scale_[j];
    }
  }

  Figures figures() const {
    std::vector<bool> held(now_.size());
    for (;;) {
      auto matrix = matrix_;
      auto right = right_;
      for (size_t i = 0; i < now_.size(); ++i) {
        if (!held[i]) continue;
        for (size_t j = 0; j < now_.size(); ++j) {
          if (!held[j]) right[j] -= matrix[j][i] * least_[i];
          matrix[i][j] = matrix[j][i] = 0;
        }
        matrix[i][i] = 1;
        right[i] = least_[i];
      }
      Figures solution = solve(std::move(matrix), std::move(right));
      bool is_new = false;
      for (size_t i = 0; i < now_.size(); ++i)
        if (!held[i] && solution[i] < least_[i]) is_new = held[i] = true;
      if (is_new) continue;
      for (size_t i = 0; i < now_.size(); ++i) solution[i] *= scale_[i];
      return solution;
    }
  }

 private:
  Figures now_, scale_, least_;
  std::vector<std::vector<double>> matrix_;
  std::vector<double> right_;
};

struct Step {
  double loss = 0;  // loss of the previous figures
  Figures figures;
};

Step improved(const std::vector<Measured>& measured, const Cluster& cluster) {
  Step step;
  const Topology topology(cluster);
  const Figures now = figures_of(cluster);
  LeastSquares squares(now);
  for (const Measured& each : measured) {
    Figures row = row_of(each, topology);
    const double estimated = dot(row, now);
    const double predicted =
        each.simulated ? to_seconds(time_alone(each.messages, each.collective, topology)).value
                       : estimated;
    if (estimated <= 0) continue;
    // Times are proportional to the figures, so the scaled row is exact at these figures.
    for (double& share : row) share *= predicted / estimated / each.seconds;
    const double error = std::abs(predicted / each.seconds - 1);
    squares.add(row, 1, error > kLargeError ? kLargeError / error : 1);
    step.loss += error > kLargeError ? kLargeError * (2 * error - kLargeError) : error * error;
  }
  step.figures = squares.figures();
  return step;
}

double change(double from, double to) { return std::abs(to - from) / std::max(from, to); }

struct Fit {
  double loss = 0;
  Cluster cluster;
};

Fit fit(const Cluster& cluster,
        std::span<const CollectiveMeasurement> measurements,
        const LibraryAlgorithms& library,
        size_t most_simulated) {
  const std::vector<Measured> measured =
      understood(measurements, Topology(cluster), library, most_simulated);
  if (measured.empty()) return {0, cluster};
  const Figures before = figures_of(cluster);
  Figures figures = before, best = before;
  double least = std::numeric_limits<double>::infinity(), largest = 0;
  for (int i = 0; i < kIterations; ++i) {
    Step step = improved(measured, with(cluster, figures));
    if (step.loss < least) {
      least = step.loss;
      best = figures;
    }
    largest = 0;
    for (size_t k = 0; k < figures.size(); ++k)
      if (step.figures[k] > 0) largest = std::max(largest, change(figures[k], step.figures[k]));
    figures = std::move(step.figures);
    if (largest < kSettled) break;
  }
  if (largest >= kSettled) figures = best;  // the iteration cycles
  for (size_t k = 0; k < figures.size(); ++k)
    if (figures[k] <= 0 ? before[k] < 1e-9 : change(before[k], figures[k]) < kKeep)
      figures[k] = before[k];
  return {least, with(cluster, figures)};
}

// Returns the algorithms of a library; none pads.
std::vector<const Algorithm*> candidates(CommunicationKind kind) {
  std::vector<const Algorithm*> result;
  for (const Algorithm& each : algorithms())
    if (fits(each, kind) && !each.name.starts_with("padded")) result.push_back(&each);
  return result;
}

}  // namespace

Calibration calibrated(const Cluster& cluster,
                       std::span<const CollectiveMeasurement> measurements) {
  LibraryAlgorithms library;
  for (const CollectiveMeasurement& each : measurements) {
    if (!is_of_a_library(each)) continue;
    const CommunicationKind kind = find_communication_kind(each.collective).value();
    library.try_emplace(kind, candidates(kind).front());
  }
  if (library.empty()) return {fit(cluster, measurements, {}, kMostSimulated).cluster, {}};
  // Improves one collective after another until none has a better algorithm.
  double least = fit(cluster, measurements, library, kMostTried).loss;
  for (bool found = true; found;) {
    found = false;
    for (const auto& [kind, first] : LibraryAlgorithms(library))
      for (const Algorithm* each : candidates(kind)) {
        LibraryAlgorithms other = library;
        other[kind] = each;
        const double loss = fit(cluster, measurements, other, kMostTried).loss;
        if (loss >= least * (1 - kBetter)) continue;
        least = loss;
        library = std::move(other);
        found = true;
      }
  }
  return {fit(cluster, measurements, library, kMostSimulated).cluster, library};
}

Nanoseconds time_alone(std::span<const Message> messages,
                       const Collective& collective,
                       const Topology& topology) {
  const auto steps = steps_of_members(messages, collective.devices);
  const auto members = static_cast<int>(collective.devices.size());
  const auto count = static_cast<int64_t>(messages.size());
  const EngineRoom room = engine_room(topology, members, 2 * count, count);
  std::vector<std::byte> bytes(FlowEngine::bytes_needed(room));  // new aligns to 16
  FlowEngine::format(bytes, room);
  FlowEngine engine(bytes, topology);
  std::vector<int> posted;
  for (size_t i = 0; i < steps.size(); ++i)
    posted.push_back(engine.post(collective.devices[i], {1, 0}, members, {}, steps[i]));
  while (engine.advance(Nanoseconds{std::numeric_limits<int64_t>::max()})) {
  }
  Nanoseconds end;
  for (int each : posted) end = std::max(end, engine.completion(each).value().complete);
  return end;
}

}  // namespace medley
