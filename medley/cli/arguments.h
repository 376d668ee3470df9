#pragma once

// The arguments of a command line. CLI11, the option parser, is compiled in one file only, because
// its header compiles slowly.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace medley {

// The rules of an argument or option. Others are named as they were added, "--layers" or "plan",
// and must be added before.
struct ArgumentRules {
  bool required = false;
  bool commas = false;                     // several values, separated by commas
  std::vector<std::string> needs = {};     // is refused without these
  std::vector<std::string> excludes = {};  // is refused with these
  std::vector<std::string> one_of = {};    // the valid values; empty: any
  std::optional<int64_t> least = std::nullopt, most = std::nullopt;
  std::vector<std::string> in_place_of = {};  // if this one is given, those are not required
};

// The arguments and options of one command. A name without "-" is a positional argument. Parsing
// writes to `value`, which must outlive the parser.
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
  // `version`: the text of --version.
  ArgumentParser(const std::string& name, const std::string& help, const std::string& version);
  ~ArgumentParser();

  // `group`: the heading of the command in --help.
  Arguments add_command(const std::string& name,
                        const std::string& group,
                        const std::string& help,
                        const std::string& footer);

  // Returns the name of the given command, with its values set, or none after printing --help or
  // --version to `out`. Throws Error of the caller.
  std::optional<std::string> parse(const std::vector<std::string>& arguments, std::ostream& out);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace medley
