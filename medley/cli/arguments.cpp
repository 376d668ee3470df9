#include "medley/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <utility>

#include "medley/base/error.h"
#include "medley/cli/table.h"
#include "medley/plan/nearest.h"

namespace medley {
namespace {

constexpr size_t kVerbColumn = 12;

CLI::App& app_of(void* command) { return *static_cast<CLI::App*>(command); }

void set_rules(CLI::App& app, CLI::Option* option, const ArgumentRules& rules) {
  option->required(rules.required);
  if (rules.commas) option->delimiter(',');
  for (const std::string& name : rules.needs) option->needs(app.get_option(name));
  for (const std::string& name : rules.excludes) option->excludes(app.get_option(name));
  if (!rules.one_of.empty())
    option->check(CLI::Validator(
        [names = rules.one_of](const std::string& found) -> std::string {
          if (std::ranges::find(names, found) != names.end()) return "";
          return fmt::format("found \"{}\", expected one of {}", found, fmt::join(names, ", "));
        },
        fmt::format("{{{}}}", fmt::join(rules.one_of, ","))));
}

// Returns the range of an option's numbers.
std::string numbers_text(const ArgumentRules& rules) {
  if (rules.least && rules.most)
    return fmt::format("a number from {} to {}", *rules.least, *rules.most);
  return rules.least ? fmt::format("a number, at least {}", *rules.least) : "a number";
}

std::string check_number(const std::string& found, const ArgumentRules& rules) {
  int64_t number = 0;
  const char* end = found.data() + found.size();
  const auto [read, error] = std::from_chars(found.data(), end, number);
  if (error == std::errc() && read == end && number >= rules.least.value_or(number) &&
      number <= rules.most.value_or(number))
    return "";
  return fmt::format("found \"{}\", expected {}", found, numbers_text(rules));
}

// Returns the first argument that a command does not take, and the option closest to it.
std::string unknown_text(const CLI::App& command) {
  const std::vector<std::string> left = command.remaining(true);
  const auto option =
      std::ranges::find_if(left, [](const std::string& each) { return each.starts_with("-"); });
  if (option == left.end())
    return fmt::format("found \"{}\", expected no further argument", left.front());
  std::vector<std::string> names;
  for (const CLI::Option* each : command.get_options())
    if (!each->get_lnames().empty()) names.push_back("--" + each->get_lnames().front());
  return fmt::format("found {}, expected an option{}", *option, suggestion(*option, names));
}

// Prints an option with its rules below its help, in lines of at most kColumns.
class Help : public CLI::Formatter {
  std::string make_option(const CLI::Option* option, bool positional) const override {
    const std::string type = option->get_type_size() == 0 ? "" : option->get_type_name();
    const size_t rule = std::min(type.find(':'), type.size());
    std::string left = "  " + make_option_name(option, positional);
    if (!type.empty()) left += " " + type.substr(0, rule);
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) left += " ...";
    if (option->get_required()) left += " REQUIRED";
    std::string text = option->get_description();
    if (rule < type.size()) text += " " + type.substr(rule + 1);
    text += names_text("; needs", option->get_needs());
    text += names_text("; not with", option->get_excludes());
    std::string lines;
    for (const std::string& line : broken(text, kColumns - column_width_)) {
      if (left.size() >= column_width_) lines += std::exchange(left, "") + "\n";
      lines += fmt::format("{:<{}}{}\n", std::exchange(left, ""), column_width_, line);
    }
    return lines;
  }

  static std::string names_text(const char* text, const std::set<CLI::Option*>& options) {
    std::set<std::string> names;
    for (const CLI::Option* each : options) names.insert(each->get_name());
    return names.empty() ? "" : fmt::format("{} {}", text, fmt::join(names, " "));
  }
};

// Joins the option parser's own messages, which may have several lines.
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
  CLI::Option* option = app.add_option(name, value, help);
  option->check(
      CLI::Validator([rules](const std::string& found) { return check_number(found, rules); },
                     rules.least || rules.most ? fmt::format("({})", numbers_text(rules)) : ""));
  set_rules(app, option, rules);
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
  parser_->app.formatter(std::make_shared<Help>());
  parser_->app.get_formatter()->column_width(kVerbColumn);
  parser_->app.get_formatter()->label("SUBCOMMAND", "VERB");
  parser_->app.set_version_flag("--version", version);
  parser_->app.require_subcommand(1);
}

ArgumentParser::~ArgumentParser() = default;

Arguments ArgumentParser::add_command(const std::string& name,
                                      const std::string& group,
                                      const std::string& help,
                                      const std::string& footer) {
  CLI::App* command = parser_->app.add_subcommand(name, help);
  command->group(group)->footer(footer)->formatter(std::make_shared<Help>());
  return Arguments(command);
}

std::optional<std::string> ArgumentParser::parse(const std::vector<std::string>& arguments,
                                                 std::ostream& out) {
  CLI::App& app = parser_->app;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));       // the parser takes them from the back
  } catch (const CLI::Success& wanted) {  // --help, --version
    app.exit(wanted, out, out);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::string command = app.get_name(), said = one_line(error.what());
    if (const auto given = app.get_subcommands(); !given.empty()) {
      command += " " + given.front()->get_name();
      if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError))
        said = unknown_text(*given.front());
    }
    throw Error(Blame::kCaller, fmt::format("{}: {}; see {} --help", command, said, command));
  }
  return app.get_subcommands().front()->get_name();
}

}  // namespace medley
