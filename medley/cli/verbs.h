#pragma once

// The commands. A new one is a function with a row in cli.cpp, and a golden case.

#include <functional>
#include <string>

#include "medley/cli/arguments.h"
#include "medley/cli/cli.h"

namespace medley {

struct Session {
  std::ostream& out;
  Files& files;
  std::string catalogue;
  const Additions& additions;
  bool json = false;
  std::ostream* terminal = nullptr;  // for progress; null: none
};

struct Verb {
  const char* name;
  const char* group;  // in --help
  const char* help;
  const char* example;  // an actual command line
  // Adds arguments and options. The result runs after parsing.
  std::function<void()> (*prepare)(Arguments& arguments, Session& session);
};

std::function<void()> prepare_plan(Arguments& arguments, Session& session);
std::function<void()> prepare_compare(Arguments& arguments, Session& session);
std::function<void()> prepare_explain(Arguments& arguments, Session& session);
std::function<void()> prepare_simulate(Arguments& arguments, Session& session);
std::function<void()> prepare_memory(Arguments& arguments, Session& session);
std::function<void()> prepare_check(Arguments& arguments, Session& session);
std::function<void()> prepare_list(Arguments& arguments, Session& session);

}  // namespace medley
