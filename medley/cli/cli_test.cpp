#include "medley/cli/cli.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <sstream>

#include "medley/base/memory_files.h"
#include "medley/plan/plan.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Cli : public ::testing::Test {
 protected:
  Cli() {
    LocalFiles local;
    files.write("mlp.graph", local.read("tests/data/mlp.graph"));
    files.write("cluster.yaml", local.read("tests/data/clusters/demo.yaml"));
  }

  struct Result {
    int code;
    std::string out, err;
  };
  Result run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    const int code = run_cli(arguments, {out, err, files, "data/devices"});
    return {code, out.str(), err.str()};
  }

  // Joins the lines of a table's last column.
  static std::string unbroken(const std::string& text) {
    return std::regex_replace(text, std::regex("\n {2,}"), " ");
  }

  static std::vector<std::string> planning(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"plan", "mlp.graph", "cluster.yaml", "--global-batch", "6000"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  MemoryFiles files;
};

// The set of commands is part of the interface, and each describes its use.
TEST_F(Cli, EveryVerbHasHelpWithAnExample) {
  std::vector<std::string> names;
  const std::string all = run({"--help"}).out;
  for (const auto& [name, group, help] : cli_verbs()) {
    names.push_back(name);
    EXPECT_THAT(all, HasSubstr(fmt::format("\n\n{}:\n", group)));
    EXPECT_THAT(all, HasSubstr(fmt::format("\n  {:<10}{}\n", name, help)));
    const Result result = run({name, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("Example:\n  medley " + name + " "));
    EXPECT_THAT(result.out, HasSubstr("--json"));
  }
  EXPECT_THAT(names,
              ElementsAre("plan", "compare", "explain", "simulate", "memory", "check", "list"));
}

// One row per strategy.
TEST_F(Cli, ListsAllStrategies) {
  const Result table = run({"list", "strategies"});
  EXPECT_THAT(table.out, StartsWith("strategy "));
  nlohmann::ordered_json rows;
  for (const Strategy& strategy : strategies()) {
    EXPECT_THAT(table.out, HasSubstr(fmt::format("\n{} ", strategy.name)));
    EXPECT_THAT(unbroken(table.out), HasSubstr(fmt::format(" {}\n", strategy.help)));
    rows.push_back({{"name", strategy.name}, {"help", strategy.help}});
  }
  EXPECT_EQ(run({"list", "strategies", "--json"}).out, rows.dump(2) + "\n");
}

// The rows of a whole list, in its order.
TEST_F(Cli, ListsOnlyNamesThatContainAText) {
  const auto all = nlohmann::json::parse(run({"list", "ops", "--json"}).out);
  nlohmann::json expected = nlohmann::json::array();
  for (const auto& row : all)
    if (row["op"].get<std::string>().find("mm") != std::string::npos) expected.push_back(row);
  EXPECT_GT(expected.size(), 1);
  EXPECT_LT(expected.size(), all.size());
  EXPECT_EQ(nlohmann::json::parse(run({"list", "ops", "mm", "--json"}).out), expected);
  const std::string table = run({"list", "ops", "mm"}).out;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), expected.size() + 1);
  EXPECT_THAT(run({"list", "devices", "H100"}).out, Not(HasSubstr("A100")));
}

TEST_F(Cli, PlanIsPrintedOrWritten) {
  const Result printed = run(planning({"--json"}));
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_THAT(run(planning({})).out, StartsWith("hap: 6000 rows a step on 2 devices"));
  const Result written = run(planning({"-o", "plan.json"}));
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_EQ(files.read("plan.json"), printed.out);
  EXPECT_EQ(parse_plan(printed.out, "plan.json").global_batch, 6000);
  EXPECT_THAT(written.out, StartsWith("hap: 6000 rows a step on 2 devices"));
}

TEST_F(Cli, PlannedFilePassesTheCheck) {
  ASSERT_EQ(run(planning({"--microbatches", "3", "-o", "plan.json"})).code, 0);
  const Result checked = run({"check", "mlp.graph", "cluster.yaml", "plan.json"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  const Result explained = run(
      {"explain", "plan.json", "--graph", "mlp.graph", "--cluster", "cluster.yaml", "--expanded"});
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("fc1/~mm#0"));
}

TEST_F(Cli, JsonParses) {
  ASSERT_EQ(run(planning({"-o", "plan.json"})).code, 0);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{planning({"-o", "again.json", "--json"}),
                                             {"explain", "plan.json", "--json"},
                                             {"check", "plan.json", "--json"},
                                             {"list", "ops", "--json"},
                                             {"list", "devices", "--json"},
                                             {"list", "strategies", "--json"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(nlohmann::json::accept(result.out)) << arguments[0];
  }
}

// One sentence on standard error, empty standard output, and no file written.
TEST_F(Cli, BadInputIsOneSentenceAndCode2) {
  files.write("empty.json", "");
  files.write("other.json", R"({"format": "medley-plan", "version": 2})");
  files.write("broken.graph", "medley-graph 1\ngraph \"x\"\nsymbols b\n%0 = nonsense\n");
  files.write("negative.yaml", "format: medley-cluster\nversion: 1\nnodes: -3\n");
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"fly"},
      {"plan"},
      {"plan", "mlp.graph", "cluster.yaml"},
      planning({"--global-batch", "many"}),
      planning({"--microbatches", "0"}),
      planning({"--microbatches", "7000"}),
      planning({"--strategy", "fastest"}),
      planning({"--devices", "fast/0/9", "-o", "plan.json"}),
      {"plan", "mlp.graph", "missing.yaml", "--global-batch", "8"},
      {"plan", "mlp.graph", "negative.yaml", "--global-batch", "8"},
      {"plan", "broken.graph", "cluster.yaml", "--global-batch", "8"},
      {"explain", "empty.json"},
      {"explain", "other.json"},
      {"explain", "other.json", "--expanded"},
      {"check", "mlp.txt"},
      {"list", "everything"},
      {"list", "ops", "everything"},
  };
  for (const auto& arguments : cases) {
    const Result result = run(arguments);
    const std::string shown = testing::PrintToString(arguments) + ": " + result.err;
    EXPECT_EQ(result.code, 2) << shown;
    EXPECT_EQ(result.out, "") << shown;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << shown;
    EXPECT_FALSE(files.exists("plan.json")) << shown;
  }
}

// In the form of all other errors, with the closest name.
TEST_F(Cli, WrongArgumentsAreNamedWithWhatIsExpected) {
  const auto said = [&](const std::vector<std::string>& arguments) { return run(arguments).err; };
  EXPECT_EQ(
      said(planning({"--global-batch", "many"})),
      "medley plan: --global-batch: found \"many\", expected a number; see medley plan --help\n");
  EXPECT_EQ(said(planning({"--stratgey", "hap"})),
            "medley plan: found --stratgey, expected an option, such as \"--strategy\"; see medley "
            "plan --help\n");
  EXPECT_EQ(said({"list", "ops", "mm", "here"}),
            "medley list: found \"here\", expected no further argument; see medley list --help\n");
  EXPECT_EQ(said({"list", "strategies", "hapy"}),
            "medley list strategies: found \"hapy\", expected a part of a name, such as \"hap\"\n");
  EXPECT_EQ(said({"list", "strategie"}),
            "medley list: what: found \"strategie\", expected one of strategies, devices, ops; see "
            "medley list --help\n");
}

// A plan for another graph is refused even without a cluster.
TEST_F(Cli, CheckSaysWhatItDoesNotCheck) {
  ASSERT_EQ(run(planning({"-o", "plan.json"})).code, 0);
  EXPECT_THAT(run({"check", "plan.json"}).out,
              HasSubstr("Not checked: whether a plan fits a graph and a cluster."));
  EXPECT_THAT(run({"check", "mlp.graph", "plan.json"}).out,
              HasSubstr("Not checked: whether a plan fits a cluster."));
  EXPECT_THAT(run({"check", "mlp.graph", "cluster.yaml", "plan.json"}).out,
              Not(HasSubstr("Not checked")));
  std::string other = files.read("mlp.graph");
  other.replace(other.find("aten.mm.default"), 15, "aten.mmm.default");
  files.write("other.graph", other);
  EXPECT_THAT(run({"check", "other.graph", "plan.json"}).err,
              StartsWith("plan.json: graph_hash: found "));
  EXPECT_THAT(run({"check", "other.graph"}).out,
              HasSubstr("which each device computes whole: aten.mmm.default."));
}

// Errors independent of the graph are found without one; all errors name the file.
TEST_F(Cli, CheckNamesTheFileOfAPlanAndWhatWouldBeRight) {
  const std::string plan = R"({"format": "medley-plan", "version": 1, "global_batch": 64,
    "pipelines": [{"microbatches": [{"rows": 64, "lengths": [26, ROWS]}], "stages": [{
      "mesh": {"devices": ["fast/0/1", "slow/0/0"]}, "ops": {"fc1/addmm#0": "CHOICE"}}]}]})";
  const auto check = [&](const std::string& rows,
                         const std::string& choice,
                         const std::vector<std::string>& more) {
    std::string text = plan;
    text.replace(text.find("ROWS"), 4, rows);
    text.replace(text.find("CHOICE"), 6, choice);
    files.write("p.json", text);
    std::vector<std::string> arguments = {"check", "p.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  EXPECT_EQ(check("39", "replicate", {}).err,
            "p.json: pipelines[0].microbatches[0].lengths: found [26, 39], which add up to 65, "
            "expected a sum of 64 rows\n");
  EXPECT_EQ(check("38", "replicate", {}).code, 0);
  EXPECT_THAT(check("38", "q even", {"mlp.graph", "cluster.yaml"}).err,
              StartsWith("p.json: ops[\"fc1/addmm#0\"]: the rule of aten.addmm.default does not "
                         "permit \"q even\", expected \"replicate\", a label ("));
}

// A terminal would obey control characters in file names.
TEST_F(Cli, ControlCharactersAreShown) {
  const Result result = run({"check", "\x1b[31mred.json"});
  EXPECT_EQ(result.err, "\\x1b[31mred.json: found no such file, expected a plan\n");
}

TEST_F(Cli, PlanThatDoesNotFitIsReported) {
  std::string yaml = files.read("cluster.yaml");
  const std::string memory = "memory: 8 GiB";
  yaml.replace(yaml.find(memory), memory.size(), "memory: 8 KiB");
  files.write("cluster.yaml", yaml);
  const Result result = run(planning({"--strategy", "data-parallel-even"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              StartsWith("mlp.graph on cluster.yaml: no plan fits: slow/0/0 (half) needs "));
  EXPECT_THAT(result.err, HasSubstr("and has 8 KiB"));
}

// Any placements and choices in a plan are either refused or lowered.
TEST_F(Cli, RandomChoicesAreCheckedOrRefused) {
  LocalFiles local;
  const Plan seed = parse_plan(local.read("tests/data/plans/mlp_choices.json"), "mlp_choices.json");
  const std::vector<std::string> placements = {"R",
                                               "P",
                                               "S(0, rows)",
                                               "S(0, even)",
                                               "S(1, even)",
                                               "S(0, hidden)",
                                               "S(1, out)",
                                               "S(0.1, out)"};
  const std::vector<std::string> choices = {"replicate",
                                            "m rows",
                                            "n even",
                                            "k hidden",
                                            "d0 rows",
                                            "d1 even",
                                            "d1 hidden",
                                            "linear {0}",
                                            "m.1 even",
                                            "linear {1}",
                                            "composite n even"};
  const std::vector<std::string> ops = {
      "fc1/addmm#0", "fc2/addmm#0", "fc2/~mm#1", "act/relu#0", "*/~t#*", "update/*", "fc1/*"};
  std::mt19937_64 random(99);
  const auto any = [&](const std::vector<std::string>& words) {
    return words[random() % words.size()];
  };
  int accepted = 0;
  const int rounds = 150;
  for (int round = 0; round < rounds; ++round) {
    Plan plan = seed;
    Stage& stage = plan.pipelines[0].stages[0];
    for (Choices* texts : {&stage.placements, &stage.batch, &stage.updates})
      for (auto& [key, text] : *texts)
        if (random() % 3 == 0) text = any(placements);
    for (auto count = random() % 3; count > 0; --count) stage.ops[any(ops)] = any(choices);
    files.write("plan.json", print(plan));
    const Result result = run({"check", "mlp.graph", "cluster.yaml", "plan.json"});
    EXPECT_TRUE(result.code == 0 || result.code == 2) << result.err << print(plan);
    accepted += result.code == 0;
  }
  EXPECT_GT(accepted, rounds / 20);
  EXPECT_LT(accepted, rounds);
}

// If any call fails, there is a whole plan: the old one or the new one.
TEST_F(Cli, AFailingDiskIsCode3AndTearsNoFile) {
  ASSERT_EQ(run(planning({"-o", "plan.json"})).code, 0);
  const std::string before = files.read("plan.json");
  const std::vector<std::string> even = planning({"--strategy", "data-parallel-even"});
  std::vector<std::string> written = even, printed = even;
  printed.emplace_back("--json");
  const std::string after = run(printed).out;
  written.insert(written.end(), {"-o", "plan.json"});
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 10);
    files.fail_call(n);
    const Result result = run(written);
    if (result.code == 0) break;
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(files.read("plan.json"), AnyOf(before, after));
  }
  EXPECT_EQ(files.read("plan.json"), after);
}

}  // namespace
}  // namespace medley
