#include "medley/torch/shard.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/torch/arguments.h"

namespace medley {
namespace {

constexpr Symbol kRowsSymbol = 0;  // rows of the micro-batch: symbol 0 of every local graph

// The sizes of all factors of the whole value, dim after dim.
std::vector<int64_t> flat_factors(const Placement& placement, const Table& table) {
  std::vector<int64_t> sizes;
  for (const std::vector<Size>& dim : placement.factors)
    for (const Size& factor : dim) sizes.push_back(evaluate(factor, table));
  return sizes;
}

// The piece of a tensor with the sizes of all factors that lies on the device with this table.
at::Tensor piece_of(at::Tensor factors, const Placement& placement, const Table& table) {
  for (const Placement::Cut& cut : placement.cuts)
    factors =
        factors.narrow(cut.position, evaluate(cut.offset, table), evaluate(cut.length, table));
  return factors;
}

// The length in rows if the batch is divided, and nothing else.
const Size* rows_of(const Placement& placement) {
  if (placement.cuts.size() != 1 || placement.cuts[0].position != 0) return nullptr;
  return placement.factors[0][0] == Size::of(kRowsSymbol) ? &placement.cuts[0].length : nullptr;
}

// Elements of dim 0 per row of the batch; 0 if it does not depend on the batch.
int64_t per_row(const Placement& placement) {
  if (placement.factors.empty()) return 0;
  Size size(1);
  for (const Size& factor : placement.factors[0]) size = size * factor;
  return size.symbols == std::vector<Symbol>{kRowsSymbol} ? size.coefficient : 0;
}

}  // namespace

std::string describe(at::ScalarType type, at::IntArrayRef shape) {
  return fmt::format("{}[{}]", to_string(to_dtype(type)), fmt::join(shape, ", "));
}

std::vector<int64_t> whole_shape(const Placement& placement, const Table& table) {
  std::vector<int64_t> shape;
  for (const std::vector<Size>& dim : placement.factors) {
    shape.push_back(1);
    for (const Size& factor : dim) shape.back() *= evaluate(factor, table);
  }
  return shape;
}

at::Tensor shard_of(const at::Tensor& whole,
                    const LoweredStage& stage,
                    const Placement& placement,
                    const Table& table) {
  at::Tensor shard = whole;
  if (!placement.cuts.empty())
    shard = piece_of(whole.reshape(flat_factors(placement, table)), placement, table);
  const Value& local = stage.graph.values[static_cast<size_t>(placement.input.value)];
  return shard.reshape(shape_of(local.type, table)).contiguous();
}

at::Tensor assemble(const std::vector<at::Tensor>& shards,
                    const Placement& placement,
                    const std::vector<const Table*>& tables) {
  if (placement.cuts.empty()) return shards.at(0).reshape(whole_shape(placement, *tables.at(0)));
  const std::vector<int64_t> factors = flat_factors(placement, *tables.at(0));
  const at::Tensor whole = at::empty(factors, shards.at(0).options());
  for (size_t i = 0; i < shards.size(); ++i) {
    const at::Tensor piece = piece_of(whole, placement, *tables[i]);
    if (piece.numel() > 0) piece.copy_(shards[i].reshape(piece.sizes()));
  }
  return whole.reshape(whole_shape(placement, *tables[0]));
}

BatchSlicer::BatchSlicer(const Program& program,
                         const LoweredStage& stage,
                         int device,
                         bool accept_own)
    : program_(program), stage_(stage), device_(device), accept_own_(accept_own) {}

const Table& BatchSlicer::table(size_t microbatch) const {
  return stage_.tables[microbatch][static_cast<size_t>(device_)];
}

std::vector<at::Tensor> BatchSlicer::slice(const Placement& placement,
                                           const at::Tensor& given) const {
  const int64_t scale = per_row(placement);
  const Size* rows_here = rows_of(placement);
  int64_t own_rows = 0;
  for (size_t m = 0; m < stage_.tables.size(); ++m)
    own_rows += rows_here ? evaluate(*rows_here, table(m)) : 0;
  Table global = table(0);
  global[kRowsSymbol] = program_.global_batch;
  std::vector<int64_t> expected = whole_shape(placement, global);
  std::vector<int64_t> own = expected;
  if (scale) own[0] = own_rows * scale;
  const at::ScalarType type =
      to_scalar_type(stage_.graph.values[static_cast<size_t>(placement.input.value)].type.dtype);
  const bool is_whole = given.sizes() == at::IntArrayRef(expected);
  const bool may_be_own = accept_own_ && rows_here;
  const bool is_own = may_be_own && given.sizes() == at::IntArrayRef(own);
  if (given.scalar_type() != type || !(is_whole || is_own)) {
    const std::string also =
        may_be_own && own != expected
            ? fmt::format(", or {} for the rows of one device", describe(type, own))
            : "";
    throw Error(Blame::kCaller,
                fmt::format("batch[\"{}\"]: found {}, expected {}{}",
                            placement.input.name,
                            describe(given.scalar_type(), given.sizes()),
                            describe(type, expected),
                            also));
  }
  std::vector<at::Tensor> slices;
  int64_t next = 0;
  for (size_t m = 0; m < stage_.tables.size(); ++m) {
    if (is_own && !is_whole) {
      const int64_t length = evaluate(*rows_here, table(m)) * scale;
      slices.push_back(given.narrow(0, next, length).contiguous());
      next += length;
      continue;
    }
    const at::Tensor rows =
        scale
            ? given.narrow(0, program_.microbatch_starts[m] * scale, table(m)[kRowsSymbol] * scale)
            : given;
    slices.push_back(shard_of(rows, stage_, placement, table(m)));
  }
  return slices;
}

}  // namespace medley
