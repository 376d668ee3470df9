#include "medley/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <new>
#include <stdexcept>

#include "medley/base/error.h"
#include "medley/base/exit_code.h"
#include "medley/base/printable.h"
#include "medley/cli/verbs.h"

namespace medley {
namespace {

constexpr const char* kVersion = "medley " MEDLEY_VERSION;

// The option parser's own messages may have several lines.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

// The command that was being parsed, for "see ... --help".
std::string command_of(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) return "medley " + verb->get_name();
  return "medley";
}

int run_verb(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  CLI::App app{"Trains one PyTorch model on unequal accelerators."};
  app.name("medley");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  Session session{
      surroundings.out, surroundings.files, surroundings.catalogue, false, surroundings.terminal};
  std::vector<std::function<void()>> bodies;
  for (const Verb& verb : verbs()) {
    CLI::App* sub = app.add_subcommand(std::string(verb.name), std::string(verb.help));
    sub->add_option(
        "--catalogue", session.catalogue, "Directory of the device catalogue instead of our own");
    sub->add_flag("--json", session.json, "Print JSON");
    sub->footer(fmt::format("Example:\n  {}", verb.example));
    bodies.push_back(verb.prepare(*sub, session));
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));       // it takes them from the back
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted, surroundings.out, surroundings.err);
  } catch (const CLI::ParseError& error) {
    throw Error(
        Blame::kCaller,
        fmt::format(
            "{}: {}; see {} --help", command_of(app), one_line(error.what()), command_of(app)));
  }
  for (size_t i = 0; i < bodies.size(); ++i)
    if (app.got_subcommand(std::string(verbs()[i].name))) bodies[i]();
  return 0;
}

}  // namespace

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all = {
      {"plan",
       "Find a plan for a graph on a cluster",
       "medley plan g.graph cluster.yaml --global-batch 64 -o plan.json",
       prepare_plan},
      {"compare",
       "Show what all strategies come to, side by side",
       "medley compare g.graph cluster.yaml --global-batch 64",
       prepare_compare},
      {"explain",
       "Say in words what a plan does",
       "medley explain plan.json --graph g.graph --cluster cluster.yaml --expanded",
       prepare_explain},
      {"simulate",
       "Show what will happen when a plan runs: times, traffic, memory",
       "medley simulate g.graph cluster.yaml plan.json --trace trace.json",
       prepare_simulate},
      {"memory",
       "Show what fills the memory of each device, and when most",
       "medley memory g.graph cluster.yaml plan.json",
       prepare_memory},
      {"check",
       "Verify graphs, clusters and plans, and that they fit together",
       "medley check g.graph cluster.yaml plan.json",
       prepare_check},
      {"list",
       "List strategies, devices of the catalogue, or ops with their rules",
       "medley list strategies",
       prepare_list},
  };
  return all;
}

int run_cli(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  PrintableStream out(surroundings.out), err(surroundings.err);
  const auto report = [&](const std::exception& error, int code) {
    err << error.what() << "\n" << std::flush;
    return code;
  };
  try {
    return run_verb(arguments,
                    {out, err, surroundings.files, surroundings.catalogue, surroundings.terminal});
  } catch (const Error& error) {
    return report(error, exit_code(error.blame()));
  } catch (const std::bad_alloc&) {
    return report(std::runtime_error("medley: out of memory"), exit_code(Blame::kEnvironment));
  } catch (const std::exception& error) {
    return report(error, exit_code(Blame::kUs));
  }
}

std::vector<std::pair<std::string, std::string>> cli_verbs() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const Verb& verb : verbs()) result.emplace_back(verb.name, verb.help);
  return result;
}

}  // namespace medley
