// An accepted layer table prints, and parses back to the same bytes.

#include "medley/measured_layers/layer_table.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  LayerTable table;
  if (!accepts([&] { table = parse_layer_table(text_of(data, size), "fuzz.json"); })) return 0;
  const std::string printed = print(table);
  const LayerTable again = parse_layer_table(printed, "printed.json");
  require_equal(print(again), printed, "what is printed parses back equal");
  require(again == table, "what is printed parses back equal");
  require_equal(hash(again), hash(table), "equal tables have equal hashes");
  return 0;
}
