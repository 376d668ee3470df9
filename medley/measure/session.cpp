#include "medley/measure/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "medley/base/error.h"

namespace medley {
namespace {

template <typename Measurement>
void put(std::vector<Measurement>& into, Measurement measurement) {
  const auto place = std::lower_bound(
      into.begin(), into.end(), measurement, [&](const Measurement& a, const Measurement& b) {
        return key(a) < key(b);
      });
  if (place != into.end() && key(*place) == key(measurement))
    *place = std::move(measurement);
  else
    into.insert(place, std::move(measurement));
}

}  // namespace

MeasuringSession::MeasuringSession(Wanted wanted, const Profile& known, const std::string& executor)
    : wanted_(std::move(wanted)), done_(wanted_.ops.size()) {
  profile_.executor = executor;
  add(known);
}

int64_t MeasuringSession::num_left() const { return std::count(done_.begin(), done_.end(), false); }

double MeasuringSession::share() const {
  Nanoseconds all, done;
  for (size_t i = 0; i < done_.size(); ++i) {
    all += wanted_.ops[i].predicted;
    if (done_[i]) done += wanted_.ops[i].predicted;
  }
  return all.value > 0 ? to_seconds(done).value / to_seconds(all).value : 1;
}

int64_t MeasuringSession::run(const OpTimer& timer,
                              const std::string& kind,
                              Nanoseconds limit,
                              int64_t first,
                              int64_t stride) {
  MEDLEY_CHECK(first >= 0 && first < stride);
  SteadyClock clock;
  const Nanoseconds end = clock.now() + limit;
  std::vector<OpMeasurement> fresh;
  int64_t left = 0, ordinal = 0;  // of the type
  for (size_t i = 0; i < wanted_.ops.size(); ++i) {
    const WantedOp& op = wanted_.ops[i];
    if (op.kind != kind || ordinal++ % stride != first || done_[i]) continue;
    if (left > 0 || (!fresh.empty() && clock.now() >= end)) {
      ++left;
      continue;
    }
    try {
      const MeasuredTime time = measure(timer, op.graph);
      fresh.push_back({kind, op.sized, time.time, time.repetitions});
    } catch (const std::exception& error) {
      failed_.push_back(fmt::format("{}: {}: {}", kind, op.sized.key, error.what()));
    }
    done_[i] = true;
  }
  Profile more{profile_.executor, std::move(fresh), {}, {}};
  std::sort(more.ops.begin(), more.ops.end(), [](const OpMeasurement& a, const OpMeasurement& b) {
    return key(a) < key(b);
  });
  add(more);
  return left;
}

void MeasuringSession::add(CollectiveMeasurement measurement) {
  put(profile_.collectives, std::move(measurement));
}

void MeasuringSession::add(OverlapMeasurement measurement) {
  put(profile_.overlaps, std::move(measurement));
}

void MeasuringSession::add(const Profile& other) {
  profile_ = merge(profile_, other);
  std::set<std::pair<std::string, std::string>> have;
  for (const OpMeasurement& each : other.ops) have.emplace(each.kind, each.op.key);
  for (size_t i = 0; i < wanted_.ops.size(); ++i)
    if (have.contains({wanted_.ops[i].kind, wanted_.ops[i].sized.key})) done_[i] = true;
}

}  // namespace medley
