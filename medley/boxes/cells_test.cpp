#include "medley/boxes/cells.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/boxes/runs.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kSeeds = 1000;

using Random = std::mt19937;
int64_t pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Returns a box's elements in the order of its factors.
std::vector<int64_t> elements_of(const FactorSizes& factors, const Box& box) {
  std::vector<int64_t> elements{0};
  for (size_t f = 0; f < factors.size(); ++f) {
    std::vector<int64_t> longer;
    for (int64_t element : elements)
      for (int64_t i = box[f].begin; i < box[f].end; ++i)
        longer.push_back(element * factors[f] + i);
    elements = std::move(longer);
  }
  return elements;
}

std::vector<int64_t> elements_of(const Runs& runs) {
  std::vector<int64_t> elements;
  for (int64_t run = 0; run < runs.count(); ++run)
    for (int64_t i = 0; i < runs.length; ++i) elements.push_back(runs.start_of(run) + i);
  return elements;
}

// A value on a mesh in two forms: as a layout, and as each device's elements and terms, one by one.
struct Held {
  Layout layout;
  std::vector<std::vector<int64_t>> elements;
  std::vector<std::vector<int64_t>> terms;  // [device] its indices on the axes that sum
};

std::vector<int64_t> random_points(Random& random, int64_t size, int64_t devices) {
  std::vector<int64_t> points{0, size};
  while (static_cast<int64_t>(points.size()) <= devices) points.push_back(pick(random, 0, size));
  std::sort(points.begin(), points.end());
  return points;
}

// Returns factors of the same value, some of them merged.
FactorSizes coarser(Random& random, const FactorSizes& factors) {
  FactorSizes merged;
  for (int64_t size : factors)
    if (!merged.empty() && pick(random, 0, 2) == 0)
      merged.back() *= size;
    else
      merged.push_back(size);
  return merged;
}

Held random_held(Random& random, const FactorSizes& factors) {
  std::vector<int64_t> mesh{pick(random, 1, 6)};
  if (pick(random, 0, 1)) mesh.push_back(pick(random, 1, 4));
  Placement placement(mesh.size());
  std::vector<CutPoints> points(mesh.size());
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    const int64_t kind = pick(random, 0, 4);
    if (kind == 1) placement[axis] = partial_sum();
    if (kind < 2 || factors.empty()) continue;
    const auto position = static_cast<int>(pick(random, 0, std::ssize(factors) - 1));
    const bool is_nested = axis == 1 && placement[0].cuts(position);
    placement[axis] = sharded(position, 0);
    if (!is_nested) {
      points[axis] = {random_points(random, factors[at(position)], mesh[axis])};
      continue;
    }
    for (int64_t i = 0; i < mesh[0]; ++i)
      points[1].push_back(
          random_points(random, points[0][0][at(i) + 1] - points[0][0][at(i)], mesh[1]));
  }
  Held held{layout_of(factors, placement, mesh, points), {}, {}};
  const std::vector<int64_t> all = elements_of(factors, whole_box(factors));
  for (int64_t i = 0; i < mesh[0]; ++i)
    for (int64_t j = 0; j < (mesh.size() > 1 ? mesh[1] : 1); ++j) {
      held.elements.emplace_back();
      held.terms.emplace_back();
      const std::vector<int64_t> me{i, j};
      for (int64_t element : all) {
        bool has = true;
        std::vector<int64_t> index(factors.size());
        for (size_t f = factors.size(), rest = at(element); f-- > 0; rest /= at(factors[f]))
          index[f] = static_cast<int64_t>(rest) % factors[f];
        for (size_t axis = 0; axis < mesh.size(); ++axis) {
          if (placement[axis].holding != Holding::kSharded) continue;
          const std::vector<int64_t>* cuts = points[axis].data();
          int64_t& along = index[at(placement[axis].position)];
          if (axis == 1 && placement[0].cuts(placement[1].position)) {
            cuts += i;
            along -= points[0][0][at(i)];
          }
          has = has && (*cuts)[at(me[axis])] <= along && along < (*cuts)[at(me[axis]) + 1];
        }
        if (has) held.elements.back().push_back(element);
      }
      for (size_t axis = 0; axis < mesh.size(); ++axis)
        if (placement[axis].holding == Holding::kPartialSum) held.terms.back().push_back(me[axis]);
    }
  return held;
}

// Returns prime sizes, ones and products such as 3 x heads x head size.
FactorSizes random_factors(Random& random) {
  static const std::vector<FactorSizes> kinds{{},
                                              {1},
                                              {7},
                                              {13, 5},
                                              {3, 4, 8},
                                              {5, 3, 6, 2},
                                              {4, 2, 3, 3},
                                              {1, 6, 1, 4},
                                              {2, 2, 2, 2, 2, 2},
                                              {31},
                                              {3, 0, 5},
                                              {9, 8}};
  return kinds[at(pick(random, 0, std::ssize(kinds) - 1))];
}

std::vector<Held> random_layouts(Random& random) {
  const FactorSizes factors = random_factors(random);
  std::vector<Held> all;
  const int64_t count = pick(random, 1, 4);
  for (int64_t i = 0; i < count; ++i) all.push_back(random_held(random, coarser(random, factors)));
  return all;
}

std::vector<Layout> layouts_of(const std::vector<Held>& all) {
  std::vector<Layout> layouts;
  for (const Held& held : all) layouts.push_back(held.layout);
  return layouts;
}

// Returns by brute force the boxes of the layouts that contain each element.
std::vector<std::vector<int>> boxes_of_elements(const std::vector<Held>& all, int64_t elements) {
  std::vector<std::vector<int>> boxes(at(elements), std::vector<int>(all.size(), kNoBox));
  for (size_t l = 0; l < all.size(); ++l)
    for (size_t d = 0; d < all[l].elements.size(); ++d)
      for (int64_t element : all[l].elements[d]) boxes[at(element)][l] = all[l].layout.box_of[d];
  return boxes;
}

TEST(LayoutOf, IsWhatTheStateSaysElementByElement) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    Random random(static_cast<unsigned>(seed));
    for (const Held& held : random_layouts(random)) {
      SCOPED_TRACE(seed);
      const Layout& layout = held.layout;
      EXPECT_NO_THROW(verify(layout, "layout"));
      ASSERT_EQ(layout.box_of.size(), held.elements.size());
      for (size_t d = 0; d < held.elements.size(); ++d) {
        const int box = layout.box_of[d];
        const auto found = box == kNoBox ? std::vector<int64_t>{}
                                         : elements_of(layout.factors, layout.boxes[at(box)]);
        ASSERT_EQ(found, held.elements[d]) << "device " << d;
        for (size_t other = 0; other < d && !layout.term_of.empty(); ++other)
          ASSERT_EQ(layout.term_of[d] == layout.term_of[other], held.terms[d] == held.terms[other]);
      }
    }
  }
}

// Every element is in one cell, in the boxes of that cell, so a cell's devices are those of all its
// elements.
TEST(CellsOf, PartitionTheValueByItsHolders) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<unsigned>(seed));
    const std::vector<Held> all = random_layouts(random);
    const Cells cells = cells_of(layouts_of(all));
    const int64_t elements = product_of(all[0].layout.factors);
    ASSERT_EQ(product_of(cells.factors), elements);
    const std::vector<std::vector<int>> expected = boxes_of_elements(all, elements);
    std::vector<std::vector<int>> found(at(elements));
    int64_t last_first = -1;
    for (const Cell& cell : cells.cells) {
      const std::vector<int64_t> own = elements_of(cells.factors, cell.box);
      ASSERT_FALSE(own.empty());
      ASSERT_LT(last_first, own[0]);
      last_first = own[0];
      for (int64_t element : own) {
        ASSERT_THAT(found[at(element)], IsEmpty()) << "element " << element;
        found[at(element)] = cell.boxes;
      }
    }
    ASSERT_EQ(found, expected);
    for (size_t l = 0; l < all.size(); ++l) {
      const std::vector<std::vector<int>> devices = devices_of(all[l].layout);
      for (size_t b = 0; b < devices.size(); ++b)
        for (size_t d = 0; d < all[l].elements.size(); ++d)
          ASSERT_EQ(std::ranges::count(devices[b], static_cast<int>(d)),
                    all[l].layout.box_of[d] == static_cast<int>(b) ? 1 : 0);
    }
  }
}

// Returns whether two adjacent boxes form one.
bool make_one_box(const Box& a, const Box& b) {
  int differ = 0;
  bool touch = false;
  for (size_t f = 0; f < a.size(); ++f) {
    differ += a[f] != b[f] ? 1 : 0;
    touch = touch || a[f].end == b[f].begin || b[f].end == a[f].begin;
  }
  return differ == 1 && touch;
}

TEST(CellsOf, NoTwoOfTheSameDevicesMakeOneBox) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<unsigned>(seed));
    const Cells cells = cells_of(layouts_of(random_layouts(random)));
    for (const Cell& a : cells.cells)
      for (const Cell& b : cells.cells)
        ASSERT_FALSE(a.boxes == b.boxes && make_one_box(a.box, b.box));
  }
}

// A device stores its elements in ascending order, so an element's position is the number of those
// before.
TEST(RunsIn, FindACellInTheTensorOfEveryDeviceThatHasIt) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<unsigned>(seed));
    const std::vector<Held> all = random_layouts(random);
    const Cells cells = cells_of(layouts_of(all));
    for (const Cell& cell : cells.cells) {
      const std::vector<int64_t> elements = elements_of(cells.factors, cell.box);
      ASSERT_EQ(elements_of(runs_of(cells.factors, cell.box)), elements);
      for (size_t l = 0; l < all.size(); ++l) {
        const Layout& layout = all[l].layout;
        for (size_t d = 0; d < layout.box_of.size(); ++d) {
          if (cell.boxes[l] == kNoBox || layout.box_of[d] != cell.boxes[l]) continue;
          std::vector<int64_t> places;
          for (int64_t element : elements)
            places.push_back(std::ranges::lower_bound(all[l].elements[d], element) -
                             all[l].elements[d].begin());
          const Box& shard = layout.boxes[at(cell.boxes[l])];
          const Runs runs = runs_in(layout.factors, shard, cells.factors, cell.box);
          ASSERT_EQ(elements_of(runs), places);
          const Runs in_bytes = runs_in(layout.factors, shard, cells.factors, cell.box, 8);
          ASSERT_EQ(in_bytes.total(), 8 * runs.total());
          ASSERT_EQ(in_bytes.start_of(in_bytes.count() - 1), 8 * runs.start_of(runs.count() - 1));
        }
      }
    }
  }
}

Layout cut_evenly(const FactorSizes& factors, int position, int64_t devices) {
  const int64_t size = factors[at(position)];
  std::vector<int64_t> points;
  for (int64_t i = 0; i <= devices; ++i) points.push_back(size * i / devices);
  return layout_of(factors, {sharded(position, 0)}, {devices}, {{points}});
}

std::vector<std::string> texts(const Cells& cells) {
  std::vector<std::string> all;
  for (const Cell& cell : cells.cells) {
    all.push_back(to_string(cell.box) + " of");
    for (int box : cell.boxes) all.back() += " " + std::to_string(box);
  }
  return all;
}

TEST(CellsOf, HeadsOfTwoPipelines) {
  const Cells cells = cells_of({cut_evenly({12}, 0, 2), cut_evenly({12}, 0, 3)});
  EXPECT_THAT(texts(cells),
              ElementsAre("[0, 4) of 0 0", "[4, 6) of 0 1", "[6, 8) of 1 1", "[8, 12) of 1 2"));
}

// One stage knows that the columns are q, k and v with heads; the other does not, and half of its
// columns ends in the middle of k.
TEST(CellsOf, FusedQkvByHeadsAndByColumns) {
  const Cells cells = cells_of({cut_evenly({3, 4, 2}, 1, 2), cut_evenly({24}, 0, 2)});
  EXPECT_EQ(cells.factors, (FactorSizes{3, 8}));
  EXPECT_THAT(texts(cells),
              ElementsAre("[0, 2) x [0, 4) of 0 0",
                          "[0, 1) x [4, 8) of 1 0",
                          "[1, 3) x [4, 8) of 1 1",
                          "[2, 3) x [0, 4) of 0 1"));
}

// Grouped queries: 2 groups of 3 heads. Cuts of groups and of heads inside them intersect in
// intervals of a group.
TEST(CellsOf, GroupsAndHeadsInsideThem) {
  const Cells cells = cells_of({cut_evenly({2, 3, 4}, 0, 2), cut_evenly({2, 3, 4}, 1, 3)});
  EXPECT_EQ(cells.factors, (FactorSizes{2, 12}));
  EXPECT_THAT(texts(cells),
              ElementsAre("[0, 1) x [0, 4) of 0 0",
                          "[0, 1) x [4, 8) of 0 1",
                          "[0, 1) x [8, 12) of 0 2",
                          "[1, 2) x [0, 4) of 1 0",
                          "[1, 2) x [4, 8) of 1 1",
                          "[1, 2) x [8, 12) of 1 2"));
}

// A value that all have whole is one cell, however many factors it has.
TEST(CellsOf, WholeValuesAreOneCell) {
  const Layout whole = layout_of({3, 4, 2}, {replicated()}, {4}, {{}});
  const Cells cells = cells_of({whole, whole});
  EXPECT_EQ(cells.factors, FactorSizes{24});
  EXPECT_THAT(texts(cells), ElementsAre("[0, 24) of 0 0"));
}

// A layout that has lost a device, or a checkpoint without one of its files.
TEST(CellsOf, ElementsWithoutHolderAreNamed) {
  const Layout rest{{12}, {{{0, 4}}, {{6, 8}}}, {0, 1}, {}};
  EXPECT_THAT(texts(cells_of({rest, cut_evenly({12}, 0, 2)})),
              ElementsAre("[0, 4) of 0 0", "[4, 6) of -1 0", "[6, 8) of 1 1", "[8, 12) of -1 1"));
}

TEST(CellsOf, EmptyValueHasNoCells) {
  const Layout empty = layout_of({3, 0}, {sharded(1, 0)}, {2}, {{{0, 0, 0}}});
  EXPECT_THAT(empty.boxes, IsEmpty());
  EXPECT_THAT(cells_of({empty, empty}).cells, IsEmpty());
}

TEST(LayoutOf, SumsOverBothAxesHaveATermForEachDevice) {
  const Layout layout = layout_of({4}, {partial_sum(), partial_sum()}, {2, 2}, {{}, {}});
  EXPECT_THAT(layout.boxes, ElementsAre(Box{{0, 4}}));
  EXPECT_THAT(layout.box_of, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(layout.term_of, ElementsAre(0, 1, 2, 3));
  const Layout copies = layout_of({4}, {partial_sum(), replicated()}, {2, 2}, {{}, {}});
  EXPECT_THAT(copies.term_of, ElementsAre(0, 0, 1, 1));
}

TEST(LayoutOf, EmptyPiecesHaveNoOwner) {
  const Layout layout =
      layout_of({3}, {sharded(0, 0), replicated()}, {2, 3}, {{points_of({3, 0})}, {}});
  EXPECT_THAT(layout.boxes, ElementsAre(Box{{0, 3}}));
  EXPECT_THAT(layout.box_of, ElementsAre(0, 0, 0, kNoBox, kNoBox, kNoBox));
}

TEST(LayoutOf, AxisOneCutsThePiecesOfAxisZero) {
  const Layout layout = layout_of({10},
                                  {sharded(0, 0), sharded(0, 1)},
                                  {2, 2},
                                  {{points_of({7, 3})}, {points_of({4, 3}), points_of({0, 3})}});
  EXPECT_THAT(layout.boxes, ElementsAre(Box{{0, 4}}, Box{{4, 7}}, Box{{7, 10}}));
  EXPECT_THAT(layout.box_of, ElementsAre(0, 1, kNoBox, 2));
}

TEST(LayoutOf, RefusesPointsThatDoNotCutTheFactor) {
  EXPECT_THROW(layout_of({4}, {sharded(0, 0)}, {2}, {{{0, 2, 5}}}), Error);
  EXPECT_THROW(layout_of({4}, {sharded(0, 0)}, {2}, {{{0, 4}}}), Error);
  EXPECT_THROW(layout_of({4}, {{Holding::kPartialMax, -1, -1}}, {2}, {{}}), Error);
}

std::string refusal(const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "none";
}

TEST(VerifyLayout, SaysWhatIsWrong) {
  const auto of = [](const Layout& layout) { return refusal([&] { verify(layout, "manifest"); }); };
  const Layout good{{3, 4}, {{{0, 1}, {0, 4}}, {{1, 3}, {0, 4}}}, {0, 1, kNoBox, 1}, {}};
  EXPECT_EQ(of(good), "none");
  Layout bad = good;
  bad.factors[1] = -4;
  EXPECT_EQ(of(bad), "manifest: factors[1]: found -4, expected no less than 0");
  bad = good;
  bad.boxes[1].pop_back();
  EXPECT_EQ(of(bad), "manifest: boxes[1]: found 1 intervals, expected 2, one for each factor");
  bad = good;
  bad.boxes[1][0].end = 4;
  EXPECT_EQ(of(bad), "manifest: boxes[1]: factor 0: found [1, 4), expected some of [0, 3)");
  bad.boxes[1][0] = {2, 2};
  EXPECT_EQ(of(bad), "manifest: boxes[1]: factor 0: found [2, 2), expected some of [0, 3)");
  bad = good;
  bad.boxes[1][0].begin = 0;
  EXPECT_EQ(of(bad),
            "manifest: found boxes [0, 1) x [0, 4) and [0, 3) x [0, 4) over one another, "
            "expected boxes that are apart");
  bad = good;
  bad.box_of[3] = 2;
  EXPECT_EQ(of(bad), "manifest: box_of[3]: found 2, expected one of 2 boxes, or -1 for none");
  bad = good;
  bad.term_of = {0, 1};
  EXPECT_EQ(of(bad), "manifest: term_of: found 2 devices, expected 4, or none");
  bad.term_of = {0, 1, -1, 0};
  EXPECT_EQ(of(bad), "manifest: term_of[2]: found -1, expected no less than 0");
}

TEST(CellsOf, RefuseLayoutsThatAreOfNoOneValue) {
  EXPECT_EQ(refusal([] {
              cells_of({cut_evenly({12}, 0, 2), cut_evenly({3, 5}, 0, 3)});
            }),
            "layouts[1]: found factors [3, 5] of 15 elements, expected 12 elements as in "
            "layouts[0]");
  EXPECT_EQ(refusal([] {
              cells_of({cut_evenly({2, 6}, 1, 2), cut_evenly({3, 4}, 1, 2)}, {"fast", "slow"});
            }),
            "slow: found a cut of factors [3, 4], expected one that fits those of the layouts "
            "before: 6 elements are no multiple of 4");
  // Equal factors, with a cut of the outermost one only.
  EXPECT_NO_THROW(cells_of({cut_evenly({2, 6}, 0, 2), cut_evenly({3, 4}, 0, 3)}));
}

}  // namespace
}  // namespace medley
