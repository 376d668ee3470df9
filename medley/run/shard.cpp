#include "medley/run/shard.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/kernels/arguments.h"

namespace medley {
namespace {

constexpr Symbol kRowsSymbol = 0;  // symbol 0 of every local graph

// Returns the sizes of all factors of the whole value, dim after dim.
std::vector<int64_t> flat_factors(const PlacedValue& placed, const Table& table) {
  std::vector<int64_t> sizes;
  for (const std::vector<Size>& dim : placed.factors)
    for (const Size& factor : dim) sizes.push_back(evaluate(factor, table));
  return sizes;
}

// Returns the part on this table's device of a tensor with the sizes of all factors.
at::Tensor piece_of(at::Tensor factors, const PlacedValue& placed, const Table& table) {
  for (const PlacedValue::Cut& cut : placed.cuts)
    factors =
        factors.narrow(cut.position, evaluate(cut.offset, table), evaluate(cut.length, table));
  return factors;
}

std::vector<int64_t> local_shape(const LoweredStage& stage,
                                 const PlacedValue& placed,
                                 const Table& table) {
  return shape_of(type_of(stage.graph, placed.input.value), table);
}

}  // namespace

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  return fmt::format("{}[{}]", to_string(to_dtype(type)), fmt::join(shape, ", "));
}

std::vector<int64_t> whole_shape(const PlacedValue& placed, const Table& table) {
  std::vector<int64_t> shape;
  for (const std::vector<Size>& dim : placed.factors) {
    shape.push_back(1);
    for (const Size& factor : dim) shape.back() *= evaluate(factor, table);
  }
  return shape;
}

at::Tensor shard_of(const at::Tensor& whole,
                    const LoweredStage& stage,
                    const PlacedValue& placed,
                    const Table& table) {
  at::Tensor shard = whole;
  if (!placed.cuts.empty())
    shard = piece_of(whole.reshape(flat_factors(placed, table)), placed, table);
  return shard.reshape(local_shape(stage, placed, table)).contiguous();
}

at::Tensor assemble(const std::vector<at::Tensor>& shards, const std::vector<ShardPlace>& places) {
  const std::vector<int64_t> shape = whole_shape(*places.at(0).placed, *places[0].table);
  if (places[0].placed->cuts.empty()) return shards.at(0).reshape(shape);
  at::Tensor whole = at::empty(shape, shards.at(0).options());
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto& [placed, table] = places[i];
    const at::Tensor piece = piece_of(whole.view(flat_factors(*placed, *table)), *placed, *table);
    if (piece.numel() > 0) piece.copy_(shards[i].reshape(piece.sizes()));
  }
  return whole;
}

// Boxes of one stage are equal or disjoint.
bool is_whole(const PlacedValue& placed, const std::vector<const Table*>& tables) {
  std::set<Box> boxes;
  for (const Table* table : tables) {
    Box box = whole_box(flat_factors(placed, *table));
    for (const PlacedValue::Cut& cut : placed.cuts) {
      const int64_t begin = evaluate(cut.offset, *table);
      box[at(cut.position)] = {begin, begin + evaluate(cut.length, *table)};
    }
    if (volume(box) > 0) boxes.insert(std::move(box));
  }
  int64_t elements = 0;
  for (const Box& box : boxes) elements += volume(box);
  return elements == product_of(flat_factors(placed, *tables.at(0)));
}

BatchSlicer::BatchSlicer(const LoweredStage& stage, int device, bool accept_own)
    : stage_(stage), device_(device), accept_own_(accept_own), needed_(rows_of(stage, device)) {
  for (const Rows& rows : needed_) num_needed_ += rows.count;
}

const Table& BatchSlicer::table(size_t microbatch) const {
  return stage_.tables[microbatch][at(device_)];
}

// Returns whether these are only this device's rows. Throws Error(kCaller) if they are no batch.
bool BatchSlicer::is_own(const PlacedValue& placed, const at::Tensor& given) const {
  const std::optional<RowDim> rows = row_dim(placed);
  Table global = table(0);
  global[kRowsSymbol] = evaluate(SymbolTable::batch(), global);
  const std::vector<int64_t> expected = whole_shape(placed, global);
  std::vector<int64_t> own = expected;
  if (rows) own[at(rows->dim)] = num_needed_ * rows->elements;
  const at::ScalarType type =
      to_scalar_type(stage_.graph.values[at(placed.input.value)].type.dtype);
  const bool is_type = given.scalar_type() == type;
  if (is_type && given.sizes() == at::IntArrayRef(expected)) return false;
  if (is_type && accept_own_ && given.sizes() == at::IntArrayRef(own)) return true;
  std::string also = accept_own_ && own != expected
                         ? fmt::format(", or {} for the rows of one device", describe(type, own))
                         : "";
  const auto lengths = given.sizes();
  if (is_type && rows && lengths.size() == expected.size() &&
      lengths[at(rows->dim)] == expected[at(rows->dim)])
    also += ": all sizes but the rows are those of the batch that was captured";
  throw Error(Blame::kCaller,
              fmt::format("batch[\"{}\"]: found {}, expected {}{}",
                          placed.input.name,
                          describe(given.scalar_type(), given.sizes()),
                          describe(type, expected),
                          also));
}

// Returns a micro-batch's rows. `first`: its first row in the given tensor.
at::Tensor BatchSlicer::slice_own(const PlacedValue& placed,
                                  const at::Tensor& given,
                                  size_t microbatch,
                                  int64_t first) const {
  const RowDim rows = row_dim(placed).value();
  const Rows read = rows_of(stage_, placed, device_, microbatch).value();
  if (read.count > 0) first += read.first - needed_[microbatch].first;
  const Table& symbols = table(microbatch);
  Table here = symbols;
  here[kRowsSymbol] = read.count;
  at::Tensor piece = given.narrow(rows.dim, first * rows.elements, read.count * rows.elements)
                         .reshape(flat_factors(placed, here));
  for (const PlacedValue::Cut& cut : placed.cuts)
    if (!cuts_rows(placed, cut))
      piece =
          piece.narrow(cut.position, evaluate(cut.offset, symbols), evaluate(cut.length, symbols));
  return piece.reshape(local_shape(stage_, placed, symbols)).contiguous();
}

std::vector<at::Tensor> BatchSlicer::slice(const PlacedValue& placed,
                                           const at::Tensor& given) const {
  const std::optional<RowDim> has = row_dim(placed);
  const bool own = is_own(placed, given);
  std::vector<at::Tensor> slices;
  int64_t first = 0;
  for (size_t m = 0; m < stage_.tables.size(); ++m) {
    if (own && has) {
      slices.push_back(slice_own(placed, given, m, first));
      first += needed_[m].count;
      continue;
    }
    const Rows rows = rows_of_microbatch(table(m));
    const at::Tensor part =
        has ? given.narrow(has->dim, rows.first * has->elements, rows.count * has->elements)
            : given;
    slices.push_back(shard_of(part, stage_, placed, table(m)));
  }
  return slices;
}

}  // namespace medley
