#pragma once

// The commands that need no PyTorch, as a library function. The program `medley` (module `command`)
// and the Python entry point are thin layers around it.

#include <ostream>
#include <string>
#include <string_view>
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

// Returns names and one line of help of all verbs, in the order of --help.
std::vector<std::pair<std::string, std::string>> cli_verbs();

}  // namespace medley
