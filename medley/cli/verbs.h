#pragma once

// The table of commands. A new one is a function with a row, and a golden case.

#include <functional>
#include <string_view>
#include <vector>

#include "medley/cli/cli.h"

namespace CLI {
class App;
}

namespace medley {

struct Session {
  std::ostream& out;
  Files& files;
  std::string catalogue;
  bool json = false;
  std::ostream* terminal = nullptr;  // for progress; null: none
};

struct Verb {
  std::string_view name;
  std::string_view help;
  std::string_view example;  // an actual command line
  // Adds arguments and options; what it returns runs once they are parsed.
  std::function<void()> (*prepare)(CLI::App& app, Session& session);
};
const std::vector<Verb>& verbs();

std::function<void()> prepare_plan(CLI::App& app, Session& session);
std::function<void()> prepare_compare(CLI::App& app, Session& session);
std::function<void()> prepare_explain(CLI::App& app, Session& session);
std::function<void()> prepare_simulate(CLI::App& app, Session& session);
std::function<void()> prepare_memory(CLI::App& app, Session& session);
std::function<void()> prepare_check(CLI::App& app, Session& session);
std::function<void()> prepare_list(CLI::App& app, Session& session);

}  // namespace medley
