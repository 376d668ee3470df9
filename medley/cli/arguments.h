#pragma once

// What a command line may say. The option parser, CLI11, is compiled in one file only: its header
// takes longer to compile than any file that would include it.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace medley {

// What holds of an argument or option. Others are named as they were added, "--layers" or "plan",
// and were added before.
struct ArgumentRules {
  bool required = false;
  bool commas = false;                     // several values, with commas between them
  std::vector<std::string> needs = {};     // is refused without these
  std::vector<std::string> excludes = {};  // is refused beside these
  std::vector<std::string> one_of = {};    // the values there are; empty: any
  std::optional<int64_t> least = std::nullopt, most = std::nullopt;
  std::vector<std::string> in_place_of = {};  // where this one is given, those are not required
};

// The arguments and options of one command. A name without "-" is a positional argument. What is
// parsed is written to `value`, which must live as long as the parser.
class Arguments {
 public:
  void text(const std::string& name,
            std::string& value,
            const std::string& help,
            const ArgumentRules& rules = {});
  void texts(const std::string& name,
             std::vector<std::string>& values,
             const std::string& help,
             const ArgumentRules& rules = {});
  void number(const std::string& name,
              int64_t& value,
              const std::string& help,
              const ArgumentRules& rules = {});
  void flag(const std::string& name,
            bool& value,
            const std::string& help,
            const ArgumentRules& rules = {});

 private:
  friend class ArgumentParser;
  explicit Arguments(void* command) : command_(command) {}
  void* command_;  // CLI::App*
};

class ArgumentParser {
 public:
  // `version`: what --version prints.
  ArgumentParser(const std::string& name, const std::string& help, const std::string& version);
  ~ArgumentParser();

  Arguments add_command(const std::string& name,
                        const std::string& help,
                        const std::string& footer);

  // The name of the command that was given, its values filled in; or none where --help or --version
  // was all that was wanted, which is printed to `out`. Throws Error of the caller.
  std::optional<std::string> parse(const std::vector<std::string>& arguments, std::ostream& out);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace medley
