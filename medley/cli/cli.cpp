#include "medley/cli/cli.h"

#include <fmt/format.h>

#include <map>
#include <new>
#include <stdexcept>

#include "medley/base/error.h"
#include "medley/base/exit_code.h"
#include "medley/base/printable.h"
#include "medley/cli/additions.h"
#include "medley/cli/arguments.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"

namespace medley {
namespace {

constexpr const char* kVersion = "medley " MEDLEY_VERSION;

constexpr Verb kVerbs[] = {
    {"plan",
     "Plan",
     "Find a plan for a graph on a cluster",
     "medley plan g.graph cluster.yaml --global-batch 64 -o plan.json",
     prepare_plan},
    {"compare",
     "Plan",
     "Compare the plans of all strategies: step time, memory, traffic",
     "medley compare g.graph cluster.yaml --global-batch 64",
     prepare_compare},
    {"explain",
     "Inspect",
     "Explain a plan: its devices, rows, sharding, memory and times",
     "medley explain plan.json --graph g.graph --cluster cluster.yaml --expanded",
     prepare_explain},
    {"simulate",
     "Inspect",
     "Simulate a step of a plan: times, traffic, memory",
     "medley simulate g.graph cluster.yaml plan.json --trace trace.json",
     prepare_simulate},
    {"memory",
     "Inspect",
     "Show the memory of each device at its peak, by use",
     "medley memory g.graph cluster.yaml plan.json",
     prepare_memory},
    {"check",
     "Inspect",
     "Verify graphs, clusters and plans, and that they fit together",
     "medley check g.graph cluster.yaml plan.json",
     prepare_check},
    {"list",
     "Inspect",
     "List strategies, devices of the catalogue, or ops with their rules",
     "medley list strategies",
     prepare_list},
};

int run_verb(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  static const Additions none;
  Session session{surroundings.out,
                  surroundings.files,
                  surroundings.catalogue,
                  surroundings.additions ? *surroundings.additions : none,
                  false,
                  surroundings.terminal};
  ArgumentParser parser("medley", "Trains one PyTorch model on unequal accelerators.", kVersion);
  std::map<std::string_view, std::function<void()>> bodies;
  for (const Verb& verb : kVerbs) {
    Arguments arguments_of = parser.add_command(
        verb.name, verb.group, verb.help, fmt::format("Example:\n  {}", verb.example));
    arguments_of.text(
        "--catalogue", session.catalogue, "Directory of the device catalogue instead of our own");
    arguments_of.flag("--json", session.json, "Print JSON");
    bodies.emplace(verb.name, verb.prepare(arguments_of, session));
  }
  if (const auto given = parser.parse(arguments, surroundings.out)) bodies.at (*given)();
  return 0;
}

}  // namespace

int run_cli(const std::vector<std::string>& arguments, const Surroundings& surroundings) {
  PrintableStream out(surroundings.out), err(surroundings.err);
  const auto report = [&](const std::exception& error, int code) {
    // One line in a file or a pipe.
    err << (surroundings.terminal ? wrapped(error.what()) : error.what()) << "\n" << std::flush;
    return code;
  };
  try {
    return run_verb(arguments,
                    {out,
                     err,
                     surroundings.files,
                     surroundings.catalogue,
                     surroundings.terminal,
                     surroundings.additions});
  } catch (const Error& error) {
    return report(error, exit_code(error.blame()));
  } catch (const std::bad_alloc&) {
    return report(std::runtime_error("medley: out of memory"), exit_code(Blame::kEnvironment));
  } catch (const std::exception& error) {
    return report(std::runtime_error(
                      fmt::format("medley: a fault of medley, please report it: {}", error.what())),
                  exit_code(Blame::kUs));
  }
}

std::vector<VerbHelp> cli_verbs() {
  std::vector<VerbHelp> result;
  for (const Verb& verb : kVerbs) result.emplace_back(verb.name, verb.group, verb.help);
  return result;
}

}  // namespace medley
