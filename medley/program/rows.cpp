#include "medley/program/rows.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

std::optional<RowDim> row_dim(const PlacedValue& placed) {
  int position = 0;
  for (size_t d = 0; d < placed.factors.size(); ++d) {
    Size size(1);
    for (const Size& factor : placed.factors[d]) size = size * factor;
    if (size.symbols == SymbolTable::rows().symbols) {
      const bool apart = placed.factors[d][0] == SymbolTable::rows();
      MEDLEY_CHECK(apart || placed.factors[d].size() == 1);
      return RowDim{static_cast<int>(d), apart ? position : kNone, size.coefficient};
    }
    position += static_cast<int>(placed.factors[d].size());
  }
  return std::nullopt;
}

bool cuts_rows(const PlacedValue& placed, const PlacedValue::Cut& cut) {
  const std::optional<RowDim> rows = row_dim(placed);
  return rows && cut.position == rows->position;
}

Rows rows_of_microbatch(const std::vector<int64_t>& table) {
  return {evaluate(SymbolTable::first_row(), table), evaluate(SymbolTable::rows(), table)};
}

std::optional<Rows> rows_of(const LoweredStage& stage,
                            const PlacedValue& input,
                            int device,
                            size_t microbatch) {
  if (!row_dim(input)) return std::nullopt;
  const std::vector<int64_t>& table = stage.tables[microbatch][at(device)];
  Rows rows = rows_of_microbatch(table);
  for (const PlacedValue::Cut& cut : input.cuts)
    if (cuts_rows(input, cut))
      rows = {rows.first + evaluate(cut.offset, table), evaluate(cut.length, table)};
  return rows;
}

std::vector<Rows> rows_of(const LoweredStage& stage, int device) {
  std::vector<Rows> all;
  for (size_t m = 0; m < stage.tables.size(); ++m) {
    const int64_t first = rows_of_microbatch(stage.tables[m][at(device)]).first;
    Rows& needed = all.emplace_back(Rows{first, 0});
    for (const PlacedValue& input : stage.inputs) {
      if (input.input.kind != InputKind::kBatch) continue;
      const std::optional<Rows> read = rows_of(stage, input, device, m);
      if (!read || read->count == 0) continue;
      if (needed.count == 0) needed = *read;
      const int64_t end = std::max(needed.first + needed.count, read->first + read->count);
      needed.first = std::min(needed.first, read->first);
      needed.count = end - needed.first;
    }
  }
  return all;
}

}  // namespace medley
