#include "medley/boxes/cells.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

std::string place_of(const std::vector<std::string>& places, size_t layout) {
  return places.empty() ? fmt::format("layouts[{}]", layout) : places[layout];
}

// Returns the factors that a layout cuts anywhere, merged with the uncut ones.
std::vector<MergedFactor> factors_cut_by(const Layout& layout) {
  std::vector<bool> is_cut(layout.factors.size());
  for (const Box& box : layout.boxes)
    for (size_t f = 0; f < box.size(); ++f)
      if (box[f].size() != layout.factors[f]) is_cut[f] = true;
  return merged_factors(layout.factors, is_cut);
}

// Cuts one factor after the other, the outermost first, and after each only the affected pieces.
class Refinement {
 public:
  Refinement(const std::vector<Layout>& layouts,
             const std::vector<std::string>& places,
             Cells& result)
      : layouts_(layouts), places_(places), result_(result) {}

  void run() {
    std::vector<std::vector<MergedFactor>> merged;
    for (const Layout& layout : layouts_) merged.push_back(factors_cut_by(layout));
    find_factors(merged);
    num_factors_ = result_.factors.size();
    here_.resize(num_factors_);
    std::vector<size_t> all;
    for (size_t l = 0; l < layouts_.size(); ++l)
      for (size_t b = 0; b < layouts_[l].boxes.size(); ++b) add(l, b, merged[l]);
    all.resize(pieces_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    refine(0, std::move(all));
  }

 private:
  // A box of a layout, or a part of it, in the factors of all.
  struct Piece {
    int layout, box;
  };

  // Finds the number of elements in one step of each factor, from the whole value down to one.
  void find_factors(const std::vector<std::vector<MergedFactor>>& merged) {
    steps_ = {product_of(layouts_[0].factors), 1};
    for (size_t l = 0; l < layouts_.size(); ++l) {
      std::vector<int64_t> both;
      std::vector<int64_t> own;
      for (const MergedFactor& factor : merged[l]) own.push_back(factor.outer);
      std::set_union(steps_.begin(),
                     steps_.end(),
                     own.begin(),
                     own.end(),
                     std::back_inserter(both),
                     std::greater<>());
      both.erase(std::unique(both.begin(), both.end()), both.end());
      for (size_t i = 1; i < both.size(); ++i)
        if (both[i - 1] % both[i] != 0)
          throw Error(Blame::kCaller,
                      fmt::format("{}: found a cut of factors [{}], expected one that fits those "
                                  "of the layouts before: {} elements are no multiple of {}",
                                  place_of(places_, l),
                                  fmt::join(layouts_[l].factors, ", "),
                                  both[i - 1],
                                  both[i]));
      steps_ = std::move(both);
    }
    for (size_t i = 1; i < steps_.size(); ++i) result_.factors.push_back(steps_[i - 1] / steps_[i]);
  }

  // Adds a box of a layout, of which a factor may be several here, and an interval several boxes.
  void add(size_t layout, size_t box, const std::vector<MergedFactor>& merged) {
    std::vector<Box> pieces{{}};
    size_t step = 0;
    for (const MergedFactor& factor : merged) {
      FactorSizes finer;
      for (; step + 1 < steps_.size() && steps_[step] > factor.inner; ++step)
        finer.push_back(result_.factors[step]);
      const std::vector<Box> ends = split(interval_in(factor, layouts_[layout].boxes[box]), finer);
      std::vector<Box> longer;
      for (const Box& piece : pieces)
        for (const Box& end : ends) {
          longer.push_back(piece);
          longer.back().insert(longer.back().end(), end.begin(), end.end());
        }
      pieces = std::move(longer);
    }
    for (const Box& piece : pieces) {
      pieces_.push_back({static_cast<int>(layout), static_cast<int>(box)});
      intervals_.insert(intervals_.end(), piece.begin(), piece.end());
    }
  }

  const IndexInterval& interval(size_t piece, size_t factor) const {
    return intervals_[piece * num_factors_ + factor];
  }

  void refine(size_t factor, std::vector<size_t> pieces) {
    work_ += std::ssize(pieces) + std::ssize(here_);
    if (work_ > kMostWork)
      throw Error(Blame::kCaller,
                  fmt::format("{}: found {} boxes that cut one another into more cells than {}, "
                              "expected fewer",
                              place_of(places_, layouts_.size() - 1),
                              pieces_.size(),
                              result_.cells.size()));
    if (factor == num_factors_) return emit(pieces);
    std::vector<int64_t> points{0, result_.factors[factor]};
    for (size_t piece : pieces) {
      points.push_back(interval(piece, factor).begin);
      points.push_back(interval(piece, factor).end);
    }
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end()), points.end());
    std::stable_sort(pieces.begin(), pieces.end(), [&](size_t a, size_t b) {
      return interval(a, factor).begin < interval(b, factor).begin;
    });
    std::vector<size_t> now, cells;
    size_t next = 0;
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      std::erase_if(now, [&](size_t piece) { return interval(piece, factor).end <= points[i]; });
      for (; next < pieces.size() && interval(pieces[next], factor).begin <= points[i]; ++next)
        now.push_back(pieces[next]);
      here_[factor] = {points[i], points[i + 1]};
      const size_t first = result_.cells.size();
      refine(factor + 1, now);
      cells = join(factor, cells, first);
    }
  }

  void emit(const std::vector<size_t>& pieces) {
    Cell cell{here_, std::vector<int>(layouts_.size(), kNoBox)};
    for (size_t piece : pieces) {
      const auto [layout, box] = pieces_[piece];
      int& found = cell.boxes[at(layout)];
      if (found != kNoBox)
        throw Error(Blame::kCaller,
                    fmt::format("{}: found boxes {} and {} over one another, expected boxes that "
                                "are apart",
                                place_of(places_, at(layout)),
                                to_string(layouts_[at(layout)].boxes[at(std::min(found, box))]),
                                to_string(layouts_[at(layout)].boxes[at(std::max(found, box))])));
      found = box;
    }
    result_.cells.push_back(std::move(cell));
  }

  // Extends the cells `before` by those from `first` on, which follow them along a factor and are
  // otherwise equal. Returns all that end where the latter do.
  std::vector<size_t> join(size_t factor, const std::vector<size_t>& before, size_t first) {
    std::vector<Cell>& cells = result_.cells;
    const auto inside = [&](const Cell& cell) { return std::span(cell.box).subspan(factor + 1); };
    std::vector<size_t> ends;
    size_t kept = first, b = 0;
    for (size_t c = first; c < cells.size(); ++c) {
      const auto box = inside(cells[c]);
      while (b < before.size() &&
             std::ranges::lexicographical_compare(inside(cells[before[b]]), box))
        ++b;
      if (b < before.size() && std::ranges::equal(inside(cells[before[b]]), box) &&
          cells[before[b]].boxes == cells[c].boxes) {
        cells[before[b]].box[factor].end = cells[c].box[factor].end;
        ends.push_back(before[b]);
        continue;
      }
      if (kept != c) cells[kept] = std::move(cells[c]);
      ends.push_back(kept++);
    }
    cells.resize(kept);
    return ends;
  }

  // Boxes from plans yield at most some ten thousand cells.
  static constexpr int64_t kMostWork = int64_t{1} << 20;

  const std::vector<Layout>& layouts_;
  const std::vector<std::string>& places_;
  Cells& result_;
  int64_t work_ = 0;
  std::vector<int64_t> steps_;
  size_t num_factors_ = 0;
  std::vector<Piece> pieces_;
  std::vector<IndexInterval> intervals_;  // [piece][factor]
  Box here_;
};

}  // namespace

Cells cells_of(const std::vector<Layout>& layouts, const std::vector<std::string>& places) {
  MEDLEY_CHECK(!layouts.empty());
  const int64_t elements = product_of(layouts[0].factors);
  for (size_t l = 1; l < layouts.size(); ++l)
    if (product_of(layouts[l].factors) != elements)
      throw Error(
          Blame::kCaller,
          fmt::format("{}: found factors [{}] of {} elements, expected {} elements as in {}",
                      place_of(places, l),
                      fmt::join(layouts[l].factors, ", "),
                      product_of(layouts[l].factors),
                      elements,
                      place_of(places, 0)));
  Cells result;
  if (elements == 0)
    result.factors = {0};
  else
    Refinement(layouts, places, result).run();
  return result;
}

}  // namespace medley
