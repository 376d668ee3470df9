#include "medley/cli/table.h"

#include <gmock/gmock.h>

#include <sstream>

namespace medley {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t widest(const std::string& text) {
  size_t most = 0;
  for (const std::string& line : lines_of(text)) most = std::max(most, line.size());
  return most;
}

TEST(Table, AlignsNumbersAndHidesEmptyColumns) {
  Table table("device|rows|traffic|idle|stage");
  table.add({"fast", "12", "0 B", "0.0 %", ""});
  table.add({"slow", "4", "0 B", "0.0 %"});
  EXPECT_EQ(table.text(), "device  rows\nfast      12\nslow       4\n");
}

TEST(Table, BreaksTitlesAndTextsAtTheWidth) {
  Table table("op|a long title that has many words|meaning");
  table.add({std::string(70, 'x') + "." + std::string(40, 'y'), "1", std::string(60, 'z')});
  table.add({"mm", "2", "every device computes the whole op and then adds it to a partial sum"});
  EXPECT_LE(widest(table.text()), kColumns);
}

TEST(Table, ContinuesWithTheColumnsThatHaveNoRoom) {
  std::string titles = "device";
  std::vector<std::string> row{"fast/0/0"};
  for (int i = 0; i < 20; ++i) {
    titles += "|column";
    row.emplace_back("12.5 ms 34.5 %");
  }
  Table table(titles);
  table.add(row);
  EXPECT_LE(widest(table.text()), kColumns);
  size_t tables = 0;
  for (const std::string& line : lines_of(table.text())) tables += line.starts_with("fast/0/0");
  EXPECT_EQ(tables, 4);
}

TEST(Wrapped, BreaksWideLinesAndIndentsTheRest) {
  EXPECT_EQ(wrapped("short\n"), "short\n");
  const std::string text = wrapped("  " + std::string(60, 'a') + " " + std::string(60, 'b') + "\n");
  EXPECT_EQ(text, "  " + std::string(60, 'a') + "\n    " + std::string(60, 'b') + "\n");
}

TEST(NextText, IsACommandOfAShell) {
  EXPECT_EQ(next_text({{"medley", "check", "my model.graph"}, {"medley", "demo"}}),
            "Next: medley check 'my model.graph'\n  or: medley demo\n");
  const std::string path(60, 'p');
  EXPECT_EQ(next_text({{"medley", "plan", path, "--global-batch", "64", "--strategy", "hap"}}),
            "Next: medley plan " + path + " --global-batch 64 \\\n        --strategy hap\n");
}

TEST(Numbers, HaveGroupsAndNoExponents) {
  EXPECT_EQ(samples_text(18331.4), "18,331 samples/s");
  EXPECT_EQ(grouped(1234567.8), "1,234,568");
  EXPECT_EQ(grouped(84.41), "84.4");
  EXPECT_EQ(grouped(0.00025), "0.000250");
  EXPECT_EQ(percent(0.0984), "9.8 %");
  EXPECT_EQ(percent(0.5, 0), "50 %");
}

}  // namespace
}  // namespace medley
