#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/testing/formula.h"

namespace medley {
namespace {

// A part of one micro-batch's round trip through all stages and boundaries and back: its time, and
// a single micro-batch's time before and after it.
struct Part {
  Nanoseconds head, own, tail;
};

// Returns in order: stage 0, boundary 0, ..., last stage, its backward, ..., boundary 0, stage 0.
std::vector<Part> round_trip(const MicrobatchTimes& times) {
  const size_t last = times.stages.size() - 1;
  std::vector<Part> parts;
  Nanoseconds now;
  const auto pass = [&](Nanoseconds own, Nanoseconds latency) {
    parts.push_back({now, own, {}});
    now += own + latency;
  };
  for (size_t s = 0; s < last; ++s) {
    pass(times.stages[s].forward, {});
    pass(times.boundaries[s].forward, times.boundaries[s].latency);
  }
  pass(times.stages[last].forward, {});
  pass(times.stages[last].backward, {});
  for (size_t s = last; s-- > 0;) {
    pass(times.boundaries[s].backward, times.boundaries[s].latency);
    pass(times.stages[s].backward, {});
  }
  for (Part& part : parts) part.tail = now - part.head - part.own;
  return parts;
}

}  // namespace

Nanoseconds lower_bound(const PipelineTimes& times) {
  std::vector<std::vector<Part>> trips;
  for (const MicrobatchTimes& size : times.sizes) trips.push_back(round_trip(size));
  std::vector<bool> used(trips.size());
  for (const int size : times.size_of) used[at(size)] = true;

  const size_t parts = trips[0].size();
  Nanoseconds bound;
  // From part a, at which the first micro-batch enters, to part b, at which the last one leaves:
  // one part of a link, or forward and backward of one stage.
  const auto visit = [&](size_t a, size_t b) {
    Nanoseconds head{INT64_MAX}, tail{INT64_MAX}, own;
    for (size_t size = 0; size < trips.size(); ++size) {
      if (!used[size]) continue;
      head = std::min(head, trips[size][a].head);
      tail = std::min(tail, trips[size][b].tail);
    }
    for (const int size : times.size_of) {
      const std::vector<Part>& trip = trips[at(size)];
      own += trip[a].own + (a == b ? Nanoseconds{} : trip[b].own);
    }
    bound = std::max(bound, head + own + tail);
  };
  for (size_t a = 0; a < parts; ++a)
    if (a % 2 == 1 && a < parts / 2)
      visit(a, a), visit(parts - 1 - a, parts - 1 - a);
    else if (a < parts / 2)
      visit(a, parts - 1 - a);
  // A single micro-batch.
  for (size_t size = 0; size < trips.size(); ++size)
    if (used[size]) bound = std::max(bound, trips[size][0].own + trips[size][0].tail);
  return bound;
}

Nanoseconds estimate_pipeline(PipelineFormula formula,
                              const MicrobatchTimes& times,
                              int microbatches) {
  MEDLEY_CHECK(microbatches >= 1);
  Nanoseconds once, slowest;
  for (const StageTimes& stage : times.stages) {
    once += stage.forward + stage.backward;
    slowest = std::max(slowest, stage.forward + stage.backward);
  }
  for (const BoundaryTimes& b : times.boundaries) {
    switch (formula) {
      case PipelineFormula::kReleased:
        once += b.forward + b.latency;
        slowest = std::max(slowest, b.forward + b.latency);
        break;
      case PipelineFormula::kPaper:
        once += b.round_trip();
        break;
      case PipelineFormula::kOverlapped:
        once += b.round_trip();
        slowest = std::max({slowest, b.forward, b.backward});
        break;
    }
  }
  return once + slowest * (microbatches - 1);
}

}  // namespace medley
