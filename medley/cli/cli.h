#pragma once

// The commands that need no PyTorch, for the program (module `command`) and the Python entry point.

#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "medley/base/files.h"

namespace medley {

struct Additions;

// Exit codes: 0, 1 a bug of ours, 2 bad input, 3 environment failure (disk full).
struct Surroundings {
  std::ostream& out;
  std::ostream& err;  // one sentence per error
  Files& files;
  std::string catalogue;                 // directory of the device catalogue
  std::ostream* terminal = nullptr;      // for progress of long commands; null: none
  const Additions* additions = nullptr;  // to the verbs (additions.h); null: none
};

// Runs a command and returns its exit code. `arguments`: without the program name. Throws nothing.
int run_cli(const std::vector<std::string>& arguments, const Surroundings& surroundings);

// Returns name, group and one line of help of all verbs, in the order of --help.
using VerbHelp = std::tuple<std::string, std::string, std::string>;
std::vector<VerbHelp> cli_verbs();

}  // namespace medley
