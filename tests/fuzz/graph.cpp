// An accepted graph prints, and parses back to the same bytes. A verified one passes all steps
// before planning.

#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/graph/verify.h"
#include "medley/sharding/coupling.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Graph graph;
  if (!accepts([&] { graph = parse_graph(text_of(data, size), "fuzz.graph"); })) return 0;
  const std::string printed = print(graph);
  const Graph again = parse_graph(printed, "printed.graph");
  require_equal(print(again), printed, "what is printed parses back equal");
  require_equal(hash(again), hash(graph), "equal graphs have equal hashes");

  try {
    verify(graph);
  } catch (const Error&) {  // a graph of our own would be our mistake, a file is not
    return 0;
  }
  require(stable_names(graph).size() == graph.ops.size(), "every op has a name");
  accepts([&] { row_coupling(graph, factorize(graph)); });
  accepts([&] {
    const Graph smaller = run_passes(graph);
    const std::string text = print(smaller);
    require_equal(print(parse_graph(text, "smaller.graph")), text, "the same after all passes");
    row_coupling(smaller, factorize(smaller));
  });
  return 0;
}
