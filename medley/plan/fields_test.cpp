#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "medley/base/error.h"
#include "medley/plan/plan.h"
#include "medley/plan/texts.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

std::string read(const std::string& file) {
  std::ifstream in("tests/data/plans/" + file);
  EXPECT_TRUE(in) << file;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

const char* const kFiles[] = {"handwritten.json", "everything.json", "data_parallel.json"};

std::string refusal(std::string_view json) {
  try {
    parse_plan(json, "p.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string minimal() {
  return R"({"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [
    {"microbatches": [{"rows": 8, "lengths": [6, 2]}],
     "stages": [{"mesh": {"devices": ["a/0/0", "a/0/1"]}}]}]})";
}

TEST(ParsePlan, PrintedTextParsesBackEqual) {
  for (const char* file : kFiles) {
    const Plan plan = parse_plan(read(file), file);
    EXPECT_EQ(parse_plan(print(plan), file), plan) << file;
    EXPECT_EQ(print(parse_plan(print(plan), file)), print(plan)) << file;
  }
}

TEST(ParsePlan, SaysHowFarItMayBeFromTheBest) {
  const std::string known = replaced(
      minimal(), "\"pipelines\"", R"("bound": {"step_ns": 200, "least_ns": 150}, "pipelines")");
  const Plan plan = parse_plan(known, "p.json");
  ASSERT_TRUE(plan.bound);
  EXPECT_EQ(*plan.bound, (StepBound{200, 150}));
  EXPECT_DOUBLE_EQ(plan.bound->gap(), 0.25);
  EXPECT_EQ(parse_plan(print(plan), "p.json"), plan);
  EXPECT_EQ(refusal(replaced(known, "150", "201")),
            "p.json: bound.least_ns: found 201, expected no more than step_ns");
}

// The file is written by print(), so it shows the printed form.
TEST(ParsePlan, PrintedFormIsStable) {
  for (const char* file : {"everything.json", "data_parallel.json"})
    EXPECT_EQ(print(parse_plan(read(file), file)), read(file));
}

TEST(ParsePlan, DefaultsMakeAShortPlan) {
  const Plan plan = parse_plan(minimal(), "p.json");
  const Stage& stage = plan.pipelines.at(0).stages.at(0);
  EXPECT_THAT(stage.mesh.shape, ElementsAre(2));
  EXPECT_THAT(stage.mesh.axes, ElementsAre("data"));
  EXPECT_EQ(plan.pipelines[0].schedule, "1f1b");
  EXPECT_EQ(stage.recompute, "none");
  EXPECT_EQ(plan.graph_hash, "");
}

TEST(ParsePlan, RefusalsNamePlaceFoundAndExpected) {
  const struct {
    std::string from, to, sentence;
  } cases[] = {
      {"\"version\": 1",
       "\"version\": 2",
       "p.json: version: found 2, expected 1, the only version that this Medley reads"},
      {"medley-plan",
       "medley-cluster",
       R"(p.json: format: found "medley-cluster", expected "medley-plan")"},
      {"\"global_batch\": 8, ", "", R"(p.json: found no "global_batch", expected one)"},
      {": 8, \"pipe",
       ": 8.5, \"pipe",
       "p.json: global_batch: found 8.5, expected an integer from 1 to 1099511627776"},
      {"[6, 2]",
       "[6, -2]",
       "p.json: pipelines[0].microbatches[0].lengths[1]: found -2, expected an integer from 0 to "
       "1099511627776"},
      {"\"devices\"",
       R"("shape": "x", "devices")",
       R"(p.json: pipelines[0].stages[0].mesh.shape: found "x", expected a list)"},
      {"\"mesh\"",
       R"("placements": {"h.*": "S[0]"}, "mesh")",
       "p.json: pipelines[0].stages[0].placements[\"h.*\"]: found \"S[0]\", expected " +
           std::string(kPlacementForms)},
      {"\"mesh\"",
       R"("recompute": "some", "mesh")",
       R"(p.json: pipelines[0].stages[0].recompute: found "some", expected "none" or "all" or "blocks")"},
      {"\"stages\"",
       R"("stage": 1, "stages")",
       R"(p.json: pipelines[0]: found unknown key "stage", expected one of "schedule", )"
       R"("in_flight", "deferred_weights", "interleave", "microbatches", "stages")"},
      {"\"pipelines\"",
       R"("parts": [{"name": "a"}], "pipelines")",
       R"(p.json: parts[0]: found {"name":"a"}, expected one of "lengths" and "shares")"},
      {"\"pipelines\"",
       R"("parts": [{"name": "rows", "lengths": [1]}], "pipelines")",
       R"(p.json: parts[0].name: found "rows", expected another name: "rows" and "even" are always )"
       "there"},
      {"\"pipelines\"",
       R"("global_batch": 9, "pipelines")",
       R"(p.json: found key "global_batch" twice in one object, expected it once)"},
  };
  for (const auto& each : cases)
    EXPECT_EQ(refusal(replaced(minimal(), each.from, each.to)), each.sentence);
}

TEST(ParsePlan, InvalidJsonIsLocated) {
  EXPECT_THAT(refusal("{\n\"format\": }"),
              ::testing::AllOf(::testing::StartsWith("p.json: line 2, column 11"),
                               ::testing::EndsWith("expected JSON")));
  EXPECT_THAT(refusal(""), ::testing::StartsWith("p.json: line 1, column 1"));
  EXPECT_THAT(refusal(std::string(100000, '[')), ::testing::HasSubstr("nested deeper than 16"));
  EXPECT_THAT(refusal("[1e999]"), ::testing::HasSubstr("expected JSON"));
}

// The examples of the format's page are valid plans.
TEST(ParsePlan, ExamplesOfTheDocumentation) {
  std::ifstream in("docs/formats/plan.md");
  std::ostringstream page;
  page << in.rdbuf();
  const std::string text = page.str(), begin = "```json\n", end = "```\n";
  int examples = 0;
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t first = at + begin.size();
    parse_plan(text.substr(first, text.find(end, first) - first), "plan.md");
    ++examples;
  }
  EXPECT_EQ(examples, 2);
}

// Each mutation of a file gives a plan that prints and parses back, or an error of the caller.
TEST(ParsePlan, MutationsParseOrAreRefused) {
  std::mt19937_64 random(20240917);
  std::vector<std::string> seeds;
  for (const char* file : kFiles) seeds.push_back(read(file));
  const std::string bytes = "{}[]\",:0123456789-.eRPSx*() \n\\\xff";
  int accepted = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text = seeds[random() % seeds.size()];
    for (auto edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const size_t length = std::min<size_t>(random() % 12, text.size() - at);
      switch (random() % 4) {
        case 0:
          text[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
          break;
        default:
          text.insert(at, 1, bytes[random() % bytes.size()]);
      }
      if (text.empty()) text = "{";
    }
    try {
      const Plan plan = parse_plan(text, "p.json");
      ++accepted;
      EXPECT_EQ(parse_plan(print(plan), "p.json"), plan) << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    }
  }
  EXPECT_GT(accepted, 100);  // else only the JSON library is tested
}

}  // namespace
}  // namespace medley
