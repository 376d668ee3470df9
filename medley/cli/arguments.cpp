#include "medley/cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

CLI::App& app_of(void* command) { return *static_cast<CLI::App*>(command); }

void set_rules(CLI::App& app, CLI::Option* option, const ArgumentRules& rules) {
  option->required(rules.required);
  if (rules.commas) option->delimiter(',');
  for (const std::string& name : rules.needs) option->needs(app.get_option(name));
  for (const std::string& name : rules.excludes) option->excludes(app.get_option(name));
  if (!rules.one_of.empty()) option->check(CLI::IsMember(rules.one_of));
  if (rules.least || rules.most)
    option->check(CLI::Range(rules.least.value_or(std::numeric_limits<int64_t>::min()),
                             rules.most.value_or(std::numeric_limits<int64_t>::max())));
}

// The option parser's own messages may have several lines.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace

void Arguments::text(const std::string& name,
                     std::string& value,
                     const std::string& help,
                     const ArgumentRules& rules) {
  CLI::App& app = app_of(command_);
  if (rules.in_place_of.empty()) {
    set_rules(app, app.add_option(name, value, help), rules);
    return;
  }
  std::vector<CLI::Option*> others;
  for (const std::string& other : rules.in_place_of) others.push_back(app.get_option(other));
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [others, &value](const std::string& given) {
        value = given;
        for (CLI::Option* other : others) other->required(false);
      },
      help);
  set_rules(app, option->trigger_on_parse(), rules);
}

void Arguments::texts(const std::string& name,
                      std::vector<std::string>& values,
                      const std::string& help,
                      const ArgumentRules& rules) {
  CLI::App& app = app_of(command_);
  set_rules(app, app.add_option(name, values, help), rules);
}

void Arguments::number(const std::string& name,
                       int64_t& value,
                       const std::string& help,
                       const ArgumentRules& rules) {
  CLI::App& app = app_of(command_);
  set_rules(app, app.add_option(name, value, help), rules);
}

void Arguments::flag(const std::string& name,
                     bool& value,
                     const std::string& help,
                     const ArgumentRules& rules) {
  CLI::App& app = app_of(command_);
  set_rules(app, app.add_flag(name, value, help), rules);
}

struct ArgumentParser::Parser {
  CLI::App app;
};

ArgumentParser::ArgumentParser(const std::string& name,
                               const std::string& help,
                               const std::string& version)
    : parser_(new Parser{CLI::App{help}}) {
  parser_->app.name(name);
  parser_->app.set_version_flag("--version", version);
  parser_->app.require_subcommand(1);
}

ArgumentParser::~ArgumentParser() = default;

Arguments ArgumentParser::add_command(const std::string& name,
                                      const std::string& help,
                                      const std::string& footer) {
  CLI::App* command = parser_->app.add_subcommand(name, help);
  command->footer(footer);
  return Arguments(command);
}

std::optional<std::string> ArgumentParser::parse(const std::vector<std::string>& arguments,
                                                 std::ostream& out) {
  CLI::App& app = parser_->app;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));       // it takes them from the back
  } catch (const CLI::Success& wanted) {  // --help, --version
    app.exit(wanted, out, out);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::string command = app.get_name();
    if (const auto given = app.get_subcommands(); !given.empty())
      command += " " + given.front()->get_name();
    throw Error(Blame::kCaller,
                fmt::format("{}: {}; see {} --help", command, one_line(error.what()), command));
  }
  return app.get_subcommands().front()->get_name();
}

}  // namespace medley
