#include "medley/program/rows.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {

bool cuts_rows(const Placement& placement, const Placement::Cut& cut) {
  return cut.position == 0 && placement.factors[0][0] == SymbolTable::rows();
}

int64_t elements_per_row(const Placement& placement) {
  if (placement.factors.empty()) return 0;
  Size size(1);
  for (const Size& factor : placement.factors[0]) size = size * factor;
  return size.symbols == SymbolTable::rows().symbols ? size.coefficient : 0;
}

Rows rows_of_microbatch(const std::vector<int64_t>& table) {
  return {evaluate(SymbolTable::first_row(), table), evaluate(SymbolTable::rows(), table)};
}

std::optional<Rows> rows_of(const LoweredStage& stage,
                            const Placement& input,
                            int device,
                            size_t microbatch) {
  if (elements_per_row(input) == 0) return std::nullopt;
  const std::vector<int64_t>& table = stage.tables[microbatch][at(device)];
  Rows rows = rows_of_microbatch(table);
  for (const Placement::Cut& cut : input.cuts)
    if (cuts_rows(input, cut))
      rows = {rows.first + evaluate(cut.offset, table), evaluate(cut.length, table)};
  return rows;
}

std::vector<Rows> rows_of(const LoweredStage& stage, int device) {
  std::vector<Rows> all;
  for (size_t m = 0; m < stage.tables.size(); ++m) {
    const int64_t first = rows_of_microbatch(stage.tables[m][at(device)]).first;
    Rows& needed = all.emplace_back(Rows{first, 0});
    for (const Placement& input : stage.inputs) {
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
