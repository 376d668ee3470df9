#include "medley/graph/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/passes.h"
#include "medley/graph/verify.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

constexpr char kTextHead[] =
    "medley-graph 1\ngraph \"g\"\nsymbols b s\n%0 = batch \"x\" : f32[b, s*4]\n";

std::string mlp_text() {
  std::ifstream file(MEDLEY_TEST_DATA "/mlp.graph");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string error_of(const std::string& text) {
  try {
    parse_graph(text, "f.graph");
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "no error";
}

// Returns the error for `line` after the four lines of kTextHead.
std::string line_error(const std::string& line) { return error_of(kTextHead + line + "\n"); }

// Returns a graph with every type of argument, input and output.
Graph everything() {
  Graph graph;
  graph.name = "all \"kinds\" \\ \n \x01 \xc3\xa9";
  graph.symbols = {"b", "rows.x0"};
  const Size b = Size::of(0), rows = Size::of(1);
  const ValueId w = add_input(graph, InputKind::kParameter, "w", {DType::kF32, {4, 8}});
  const ValueId m = add_input(graph, InputKind::kBuffer, "mean", {DType::kF64, {}});
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {DType::kBF16, {b, b * Size(64)}});
  const ValueId r = add_input(graph, InputKind::kScalar, "rng", {DType::kI64, {2}});
  const ValueId e = add_input(graph, InputKind::kState, "exp:w", {DType::kF32, {4, 8}});
  const ValueId h = add_input(graph, InputKind::kReceived, "h/add#0", {DType::kF32, {b, 8}});
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Op op;
  op.name = "aten.every.thing";
  op.module = "h.0";
  op.source = "a \"b\".py:3";
  op.phase = Phase::kUpdate;
  op.arguments = {NoneArgument{},
                  ValueArgument{x},
                  std::vector<ValueArgument>{{x}, {kNone}, {r}},
                  std::vector<ValueArgument>{{kNone}},
                  std::vector<ValueArgument>{},
                  true,
                  Size(-7),
                  Size(0),
                  b * b * rows * Size(-2),
                  std::numeric_limits<int64_t>::min(),
                  0.1,
                  -0.0,
                  1e-5,
                  1e22,
                  -kInf,
                  kInf,
                  5e-324,
                  std::vector<Size>{1, b * rows, -1},
                  std::vector<Size>{},
                  std::vector<bool>{true, false},
                  std::vector<bool>{},
                  std::vector<double>{1.0, -kInf},
                  std::vector<double>{},
                  DType::kBool,
                  std::string("none"),
                  std::string()};
  op.results = {0, kNone, 0};
  const auto y = add_op(graph, op, {{DType::kF32, {}}, {DType::kF32, {4, 8}}});
  graph.outputs = {{OutputKind::kLoss, "", y[0]},
                   {OutputKind::kGradient, "w", y[1]},
                   {OutputKind::kBuffer, "mean", m},
                   {OutputKind::kParameter, "w", w},
                   {OutputKind::kState, "exp:w", e},
                   {OutputKind::kSent, "h/add#0", h}};
  return graph;
}

TEST(Text, EveryKindOfArgumentParsesBackEqual) {
  const Graph graph = everything();
  verify(graph);
  EXPECT_EQ(print(parse_graph(print(graph), "f")), print(graph));
  EXPECT_TRUE(parse_graph(print(graph), "f") == graph);
}

// NaN is not equal to itself, so only the text can be compared.
TEST(Text, NanPrintsAsNan) {
  Graph graph = everything();
  graph.ops[0].arguments = {std::nan(""), -std::nan("")};
  EXPECT_THAT(print(graph), HasSubstr("aten.every.thing(nan, nan) : "));
  EXPECT_EQ(print(parse_graph(print(graph), "f")), print(graph));
}

TEST(Text, FloatsKeepAFloatMark) {
  Graph graph = everything();
  graph.ops[0].arguments = {2.0, 1e-5, 100000.0, 1e22, Size(2)};
  EXPECT_THAT(print(graph), HasSubstr("(2.0, 1e-05, 1e+05, 1e+22, 2)"));
}

// The golden file is in printed form, apart from its comment.
TEST(Text, MlpPrintsAsItStands) {
  const std::string text = mlp_text();
  const Graph graph = parse_graph(text, "mlp.graph");
  verify(graph);
  EXPECT_EQ(graph.ops.size(), 29u);
  EXPECT_EQ(print(graph), text.substr(text.find("medley-graph")));
}

TEST(Text, SpacesCommentsAndBlankLinesMeanNothing) {
  const std::string spaced =
      "# c\n\nmedley-graph   1\n  # c\n graph \"g\"\nsymbols  b  s \n%0=batch\"x\":f32[b,s*4]";
  EXPECT_TRUE(parse_graph(spaced, "f") == parse_graph(kTextHead, "f"));
}

TEST(Text, HeaderErrorsNameTheLine) {
  EXPECT_EQ(error_of(""), "f.graph:0: found the end of the file, expected 'medley-graph 1'");
  EXPECT_EQ(error_of("medley-graph 2\n"), "f.graph:1: found '2', expected version 1");
  EXPECT_EQ(error_of("graph \"x\"\n"), "f.graph:1: found 'graph', expected 'medley-graph'");
  EXPECT_EQ(error_of("medley-graph 1\ngraph gpt\n"),
            "f.graph:2: found 'gpt', expected the name of the graph in quotes");
  EXPECT_EQ(error_of("medley-graph 1\ngraph \"g\"\nsymbols b b\n"),
            "f.graph:3: found 'b', expected each symbol once");
  EXPECT_EQ(error_of("medley-graph 1\ngraph \"g\"\nsymbols none\n"),
            "f.graph:3: found 'none', expected the name of a symbol");
  EXPECT_EQ(error_of("medley-graph 1\ngraph \"g\"\n"),
            "f.graph:2: found the end of the file, expected 'symbols'");
}

TEST(Text, StatementErrors) {
  EXPECT_EQ(line_error("input %1"), "f.graph:5: found 'input', expected '%', '_' or 'output'");
  EXPECT_EQ(line_error("%0 = aten.relu.default(%0) : f32[] @forward \"\""),
            "f.graph:5: found '%0' again, expected a new value");
  EXPECT_EQ(line_error("%1 = aten.relu.default(%1) : f32[] @forward \"\""),
            "f.graph:5: found '%1', expected a value defined above");
  EXPECT_EQ(line_error("%1, %1 = aten.x.default() : f32[], f32[] @forward \"\""),
            "f.graph:5: found '%1', expected a new value");
  EXPECT_EQ(line_error("%1 = relu(%0) : f32[] @forward \"\""),
            "f.graph:5: found 'relu', expected an input kind or namespace.op.overload");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f32 @forward \"\""),
            "f.graph:5: found '@', expected '['");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f31[] @forward \"\""),
            "f.graph:5: found 'f31', expected a dtype");
  EXPECT_EQ(line_error("%1 = aten.a.b() : none @forward \"\""),
            "f.graph:5: found 'none', expected a dtype");
  EXPECT_EQ(line_error("_ = aten.a.b() : f32[] @forward \"\""),
            "f.graph:5: found 'f32', expected 'none'");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f32[-1] @forward \"\""),
            "f.graph:5: found a negative size, expected sizes of zero or more");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f32[] @sideward \"\""),
            "f.graph:5: found 'sideward', expected a phase: prologue, forward, backward or update");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f32[] @forward \"\" at \"\""),
            "f.graph:5: found an empty source, expected a source or no 'at'");
  EXPECT_EQ(line_error("%1 = aten.a.b() : f32[] @forward \"\" x"),
            "f.graph:5: found 'x', expected the end of the line");
  EXPECT_EQ(line_error("output loss %7"), "f.graph:5: found '%7', expected a value defined above");
  EXPECT_EQ(line_error("output win %0"),
            "f.graph:5: found 'win', expected loss, metric, gradient, buffer, parameter or state");
  EXPECT_EQ(line_error("output loss %0\n%1 = batch \"y\" : f32[]"),
            "f.graph:6: found 'batch', expected inputs before ops");
  EXPECT_EQ(line_error("output loss %0\n%1 = aten.a.b() : f32[] @forward \"\""),
            "f.graph:6: found 'aten.a.b', expected ops before outputs");
  EXPECT_EQ(line_error("%2 = batch \"y\" : f32[]"),
            "f.graph:5: found the end of the file, expected a definition of '%1' before it");
}

std::string argument_error(const std::string& argument) {
  return line_error("%1 = aten.a.b(" + argument + ") : f32[] @forward \"\"");
}

TEST(Text, ArgumentErrors) {
  EXPECT_EQ(
      argument_error("[]"),
      "f.graph:5: found ']', expected an item; an empty list is sizes[], values[], floats[] or "
      "bools[]");
  EXPECT_EQ(argument_error("sizes[1]"), "f.graph:5: found '1', expected ']'");
  EXPECT_EQ(argument_error("[1, 2.0]"),
            "f.graph:5: found '2.0', expected an integer of 64 bits or a symbol of the graph");
  EXPECT_EQ(argument_error("[1.0, 2]"),
            "f.graph:5: found '2', expected a float, such as 1.0, 1e-05 or inf");
  EXPECT_EQ(argument_error("[true, 1]"), "f.graph:5: found '1', expected true or false");
  EXPECT_EQ(argument_error("[%0, 1]"), "f.graph:5: found '1', expected 'none'");
  EXPECT_EQ(argument_error("[[1]]"),
            "f.graph:5: found '[', expected an integer of 64 bits or a symbol of the graph");
  EXPECT_EQ(argument_error("1, "), "f.graph:5: found ')', expected an argument");
  EXPECT_EQ(line_error("%1 = aten.a.b(\"abc"),
            "f.graph:5: found \"\\\"abc\", expected a string that ends");
  EXPECT_EQ(argument_error("%01"), "f.graph:5: found '01', expected the number of a value");
}

TEST(Text, SizeErrors) {
  const std::string integer = ", expected an integer of 64 bits or a symbol of the graph";
  EXPECT_EQ(argument_error("q"), "f.graph:5: found 'q'" + integer);
  EXPECT_EQ(argument_error("b*"), "f.graph:5: found ')'" + integer);
  EXPECT_EQ(argument_error("007"), "f.graph:5: found '007'" + integer);
  EXPECT_EQ(argument_error("-0"), "f.graph:5: found '-0'" + integer);
  EXPECT_EQ(argument_error("b*9223372036854775808"),
            "f.graph:5: found '9223372036854775808'" + integer);
  EXPECT_EQ(argument_error("b*1"),
            "f.graph:5: found '1', expected a coefficient other than 0 and 1");
  EXPECT_EQ(argument_error("b*0"),
            "f.graph:5: found '0', expected a coefficient other than 0 and 1");
  EXPECT_EQ(argument_error("2*b"),
            "f.graph:5: found '*', expected symbols before their coefficient");
  EXPECT_EQ(argument_error("s*b"),
            "f.graph:5: found 'b', expected symbols in the order of the 'symbols' line");
  EXPECT_EQ(argument_error("1e999"),
            "f.graph:5: found '1e999', expected a float, such as 1.0, 1e-05 or inf");
  EXPECT_EQ(argument_error("-infinity"),
            "f.graph:5: found '-infinity', expected a float, such as 1.0, 1e-05 or inf");
}

// Malicious input must fail immediately and in constant space.
TEST(Text, EvilInputFails) {
  EXPECT_THAT(line_error("%2147483647 = batch \"y\" : f32[]"), HasSubstr("below"));
  EXPECT_THAT(line_error("%99999999999999999999 = batch \"y\" : f32[]"),
              HasSubstr("expected the number of a value"));
  EXPECT_THAT(argument_error(std::string(1'000'000, '[')), HasSubstr("found '['"));
  EXPECT_THAT(line_error("%1 = aten.a.b(\"" + std::string(1'000'000, '\\')),
              HasSubstr("string that ends"));
  std::string factors = "b";
  for (int i = 0; i < 100'000; ++i) factors += "*b";
  EXPECT_THAT(argument_error(factors), HasSubstr("at most 64 symbols"));
  std::string dims = "1";
  for (int i = 0; i < 100'000; ++i) dims += ", 1";
  EXPECT_THAT(line_error("%1 = batch \"y\" : f32[" + dims + "]"), HasSubstr("at most 64 dims"));
  EXPECT_THAT(error_of(std::string(1000, '\0')), HasSubstr("f.graph:1: found"));
  EXPECT_THAT(error_of(std::string(300u << 20, '\n')), HasSubstr("expected at most"));
}

// Changes, drops, doubles and moves single bytes and whole tokens of a valid text.
std::string mutate(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return random() % n; };
  static const std::vector<std::string> kTokens{"%0",
                                                "%99",
                                                "[",
                                                "]",
                                                "(",
                                                "",
                                                "none",
                                                "-1",
                                                "b*b*b",
                                                "1e300",
                                                "\"",
                                                "\n",
                                                "sizes[]",
                                                "f32[]",
                                                "9223372036854775807",
                                                "aten.view.default",
                                                "aten.t.default",
                                                "aten.mm.default",
                                                ", ",
                                                "\\"};
  for (size_t n = 1 + below(3); n > 0; --n) {
    const size_t at = below(text.size());
    switch (below(5)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, 1 + below(8));
        break;
      case 2:
        text.insert(at, kTokens[below(kTokens.size())]);
        break;
      case 3:
        text.replace(at, 1 + below(12), kTokens[below(kTokens.size())]);
        break;
      default:
        text.insert(at, text.substr(below(text.size()), 1 + below(40)));
        break;
    }
  }
  return text;
}

TEST(Text, MutationsParseOrBlameTheCaller) {
  const std::string texts[] = {mlp_text(), print(everything())};
  std::mt19937 random(1);
  int parsed = 0, verified = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = mutate(texts[i % 2], random);
    Graph graph;
    try {
      graph = parse_graph(text, "f");
    } catch (const Error& error) {
      ASSERT_EQ(error.blame(), Blame::kCaller) << text;
      continue;
    }
    ++parsed;
    ASSERT_EQ(print(parse_graph(print(graph), "f")), print(graph)) << text;
    ASSERT_EQ(hash(graph).size(), 64u);
    try {
      verify(graph);
    } catch (const Error&) {
      continue;
    }
    ++verified;
    ASSERT_NO_THROW(run_passes(graph)) << text;  // for any arguments of its ops
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(verified, 100);
}

TEST(Hash, DependsOnIdsAndSourcesNot) {
  const Graph graph = parse_graph(mlp_text(), "mlp.graph");
  Graph other = graph;  // value i becomes n - 1 - i
  const auto last = static_cast<ValueId>(graph.values.size()) - 1;
  std::reverse(other.values.begin(), other.values.end());
  for (Input& input : other.inputs) input.value = last - input.value;
  for (Op& op : other.ops) {
    op.source += "x";
    for_each_operand(op, [&](ValueId& value) { value = last - value; });
    for (ValueId& result : op.results) result = last - result;
  }
  for (Output& output : other.outputs) output.value = last - output.value;
  verify(other);
  EXPECT_NE(print(other), print(graph));
  EXPECT_EQ(hash(other), hash(graph));
  EXPECT_EQ(hash(graph).size(), 64u);
}

TEST(Hash, DependsOnEverythingElse) {
  const Graph graph = parse_graph(mlp_text(), "mlp.graph");
  Graph other = graph;
  other.ops[3].module = "fc3";
  EXPECT_NE(hash(other), hash(graph));
  other = graph;
  other.ops[3].phase = Phase::kBackward;
  EXPECT_NE(hash(other), hash(graph));
  other = graph;
  other.symbols[0] = "c";
  EXPECT_NE(hash(other), hash(graph));
}

}  // namespace
}  // namespace medley
