#include "medley/prepare/recompute.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// A value with rows from a forward op, with all views of it: from position `made` to the last
// forward op that reads it.
struct Span {
  size_t made = 0, last = 0;
  int64_t bytes = 0;
  bool saved = false;  // the backward phase reads it
};

std::vector<Span> find_spans(const Graph& graph) {
  const std::vector<int64_t> rows(graph.symbols.size(), 1 << 10);  // rows for comparing bytes
  std::vector<int> span_of(graph.values.size(), -1);
  std::vector<Span> spans;
  size_t position = 0;
  for (const Op& op : graph.ops) {
    const bool backward = op.phase == Phase::kBackward;
    if (op.phase != Phase::kForward && !backward) continue;
    for (ValueId value : operands(op)) {
      if (value == kNone || span_of[at(value)] < 0) continue;
      Span& span = spans[at(span_of[at(value)])];
      if (backward) span.saved = true;
      if (!backward) span.last = position;
    }
    if (backward) continue;
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId value = op.results[r];
      if (value == kNone || !has_rows(type_of(graph, value))) continue;
      const ValueId shared = storage_operand(op, r);
      if (shared != kNone && span_of[at(shared)] >= 0) {
        span_of[at(value)] = span_of[at(shared)];
      } else {
        span_of[at(value)] = static_cast<int>(spans.size());
        spans.push_back({position, position, num_bytes(type_of(graph, value), rows), false});
      }
    }
    ++position;
  }
  return spans;
}

// Returns the bytes that cross the cut before each position.
std::vector<int64_t> widths(const std::vector<Span>& spans, size_t positions) {
  std::vector<int64_t> change(positions + 2, 0);
  for (const Span& span : spans) {
    change[span.made + 1] += span.bytes;
    change[span.last + 1] -= span.bytes;
  }
  for (size_t p = 1; p < change.size(); ++p) change[p] += change[p - 1];
  return change;
}

// Returns 0, the possible cuts, and the end. A cut is possible if fewer bytes cross than before, or
// equally many that the backward phase reads.
std::vector<size_t> candidates(const std::vector<Span>& spans, size_t positions) {
  const std::vector<int64_t> width = widths(spans, positions);
  std::vector<bool> makes_saved(positions, false);
  for (const Span& span : spans)
    if (span.saved) makes_saved[span.made] = true;
  std::vector<size_t> found{0};
  for (size_t p = 1; p < positions; ++p)
    if (width[p] < width[p - 1] || (width[p] == width[p - 1] && makes_saved[p - 1]))
      found.push_back(p);
  found.push_back(positions);
  return found;
}

// The tables of the search: for candidates i < j, the bytes made between them that cross j, and the
// others that the backward phase reads.
struct Tables {
  std::vector<std::vector<int64_t>> crosses, saved;
};

Tables tables_of(const std::vector<Span>& spans, const std::vector<size_t>& cuts) {
  const size_t n = cuts.size();
  Tables tables;
  tables.crosses.assign(n, std::vector<int64_t>(n, 0));
  tables.saved = tables.crosses;
  for (const Span& span : spans) {
    // The first candidate after its creation, and the first that it does not cross.
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), span.made) - cuts.begin();
    const auto end = std::upper_bound(cuts.begin(), cuts.end(), span.last) - cuts.begin();
    const auto made_in = at(after - 1);
    for (auto j = at(after); j < n; ++j) {
      if (j < at(end))
        tables.crosses[made_in][j] += span.bytes;
      else if (span.saved)
        tables.saved[made_in][j] += span.bytes;
    }
  }
  // Includes only values made directly behind i so far; now all that are made from i on.
  for (size_t i = n - 1; i-- > 0;)
    for (size_t j = i + 2; j < n; ++j) {
      tables.crosses[i][j] += tables.crosses[i + 1][j];
      tables.saved[i][j] += tables.saved[i + 1][j];
    }
  return tables;
}

// The cuts with the fewest kept bytes among those whose blocks save at most `limit`.
struct Division {
  int64_t kept = std::numeric_limits<int64_t>::max(), largest = 0;
  std::vector<size_t> cuts;  // indices of candidates
};

Division divide_within(const Tables& tables, int64_t limit) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const size_t n = tables.saved.size();
  std::vector<int64_t> least(n, kNever);
  std::vector<size_t> before(n, 0);
  least[0] = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n && least[i] != kNever; ++j) {
      if (tables.saved[i][j] > limit) break;  // a longer block saves no less
      const int64_t kept = least[i] + tables.crosses[i][j];
      if (kept >= least[j]) continue;
      least[j] = kept;
      before[j] = i;
    }
  Division division{least[n - 1], 0, {}};
  if (division.kept == kNever) return division;
  for (size_t j = n - 1; j > 0; j = before[j]) {
    division.largest = std::max(division.largest, tables.saved[before[j]][j]);
    if (before[j] > 0) division.cuts.push_back(before[j]);
  }
  std::reverse(division.cuts.begin(), division.cuts.end());
  return division;
}

class Recomputer {
 public:
  explicit Recomputer(Prepared& prepared)
      : prepared_(prepared),
        maker_(prepared.graph.values.size(), kNone),
        kept_(prepared.graph.values.size(), false) {}

  void keep_across(const std::vector<size_t>& cuts) {
    std::vector<size_t> made(kept_.size(), 0), last(kept_.size(), 0);
    size_t position = 0;
    for (const Op& op : prepared_.graph.ops) {
      if (op.phase != Phase::kForward) continue;
      for (ValueId value : operands(op))
        if (value != kNone) last[at(value)] = position;
      for (ValueId value : op.results)
        if (value != kNone) made[at(value)] = position;
      ++position;
    }
    for (size_t value = 0; value < kept_.size(); ++value) {
      const auto cut = std::upper_bound(cuts.begin(), cuts.end(), made[value]);
      if (cut != cuts.end() && *cut <= last[value] && has_rows(prepared_.graph.values[value].type))
        kept_[value] = true;
    }
  }

  void run() {
    keep_readers_of_changing_buffers();
    ops_ = std::move(prepared_.graph.ops);
    names_ = std::exchange(prepared_.names, {});
    roles_ = std::exchange(prepared_.roles, {});
    prepared_.graph.ops.clear();
    for (size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].phase == Phase::kForward)
        for (ValueId value : ops_[i].results)
          if (value != kNone) maker_[at(value)] = static_cast<OpId>(i);
    for (size_t i = 0; i < ops_.size(); ++i) {
      Op op = ops_[i];
      if (op.phase == Phase::kBackward) {
        for (OpId id : missing_for(op)) copy(id);
        for_each_operand(op, [&](ValueId& value) { value = now(value); });
      }
      add(std::move(op), i, false);
    }
  }

 private:
  void add(Op op, size_t from, bool again) {
    prepared_.graph.ops.push_back(std::move(op));
    prepared_.names.push_back(names_[from]);
    prepared_.roles.push_back(roles_[from]);
    prepared_.roles.back().recomputed = again;
  }

  // Another micro-batch, or this one, may have changed the buffer before the backward phase.
  void keep_readers_of_changing_buffers() {
    std::set<std::string> changing;
    for (const Output& output : prepared_.graph.outputs)
      if (output.kind == OutputKind::kBuffer) changing.insert(output.name);
    std::set<ValueId> buffers;
    for (const Input& input : prepared_.graph.inputs)
      if (input.kind == InputKind::kBuffer && changing.contains(input.name))
        buffers.insert(input.value);
    for (const Op& op : prepared_.graph.ops)
      for (ValueId value : operands(op))
        if (buffers.contains(value))
          for (ValueId result : op.results)
            if (result != kNone) kept_[at(result)] = true;
  }

  bool is_forgotten(ValueId value) const {
    return value != kNone && at(value) < maker_.size() && maker_[at(value)] != kNone &&
           !kept_[at(value)];
  }

  ValueId now(ValueId value) const {
    const auto found = copies_.find(value);
    return found == copies_.end() ? value : found->second;
  }

  // Returns the forward ops to be copied before an op can run, in order.
  std::set<OpId> missing_for(const Op& op) const {
    std::set<OpId> missing;
    std::vector<ValueId> wanted = operands(op);
    while (!wanted.empty()) {
      const ValueId value = wanted.back();
      wanted.pop_back();
      if (!is_forgotten(value) || copies_.contains(value)) continue;
      if (!missing.insert(maker_[at(value)]).second) continue;
      const std::vector<ValueId> read = operands(ops_[at(maker_[at(value)])]);
      wanted.insert(wanted.end(), read.begin(), read.end());
    }
    return missing;
  }

  void copy(OpId id) {
    Op op = ops_[at(id)];
    op.phase = Phase::kBackward;
    for_each_operand(op, [&](ValueId& value) { value = now(value); });
    for (ValueId& result : op.results) {
      if (result == kNone) continue;
      const auto fresh = static_cast<ValueId>(prepared_.graph.values.size());
      prepared_.graph.values.push_back(prepared_.graph.values[at(result)]);
      // Kept values are read as they are.
      if (!kept_[at(result)]) copies_[result] = fresh;
      result = fresh;
    }
    add(std::move(op), at(id), true);
  }

  Prepared& prepared_;
  std::vector<OpId> maker_;  // [value] forward op of `ops_`
  std::vector<bool> kept_;   // [value]
  std::vector<Op> ops_;
  std::vector<std::string> names_;
  std::vector<OpRole> roles_;
  std::map<ValueId, ValueId> copies_;
};

}  // namespace

std::vector<size_t> recomputed_blocks(const Graph& graph, int in_flight) {
  const auto positions = at(std::count_if(graph.ops.begin(), graph.ops.end(), [](const Op& op) {
    return op.phase == Phase::kForward;
  }));
  const std::vector<Span> spans = find_spans(graph);
  const std::vector<size_t> places = candidates(spans, positions);
  const Tables tables = tables_of(spans, places);
  const int64_t all = tables.saved.front().back();
  std::vector<size_t> best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t parts = 1; parts < 2 * static_cast<int64_t>(places.size());
       parts = parts * 5 / 4 + 1) {
    const Division division = divide_within(tables, all / parts);
    if (division.kept == std::numeric_limits<int64_t>::max()) break;
    const int64_t bytes = in_flight * division.kept + division.largest;
    if (bytes >= least) continue;
    least = bytes;
    best = division.cuts;
  }
  for (size_t& cut : best) cut = places[cut];
  return best;
}

std::vector<OpId> originals(const Prepared& prepared) {
  const std::vector<Op>& ops = prepared.graph.ops;
  std::vector<OpId> result(ops.size(), kNone);
  std::map<std::string_view, std::pair<std::vector<OpId>, std::vector<OpId>>> by_name;
  for (size_t i = 0; i < ops.size(); ++i)
    if (prepared.roles[i].recomputed)
      by_name[prepared.names[i]].second.push_back(static_cast<OpId>(i));
  for (size_t i = 0; i < ops.size() && !by_name.empty(); ++i)
    if (ops[i].phase == Phase::kForward)
      if (const auto found = by_name.find(prepared.names[i]); found != by_name.end())
        found->second.first.push_back(static_cast<OpId>(i));
  for (const auto& [name, pair] : by_name) {
    const auto& [first, again] = pair;
    if (first.empty()) continue;  // only the backward phase needed it
    MEDLEY_CHECK_EQ(first.size(), again.size());
    for (size_t k = 0; k < again.size(); ++k) {
      MEDLEY_CHECK_EQ(ops[at(first[k])].name, ops[at(again[k])].name);
      result[at(again[k])] = first[k];
    }
  }
  return result;
}

void recompute(Prepared& prepared, const StageContext& context) {
  if (context.recompute == "none") return;
  Recomputer recomputer(prepared);
  if (context.recompute == "blocks") {
    prepared.blocks =
        context.blocks ? *context.blocks : recomputed_blocks(prepared.graph, context.in_flight);
    recomputer.keep_across(prepared.blocks);
  }
  recomputer.run();
}

}  // namespace medley
