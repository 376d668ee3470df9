#pragma once

// The commands that need no PyTorch, as a library function: the program `medley` of the core
// (room `command`), and the Python entry point, which adds others, are thin around it.

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/files.h"

namespace medley {

struct Additions;

// Exit codes: 0, 1 a bug of ours, 2 bad input, 3 the world failed (disk full).
struct Surroundings {
  std::ostream& out;
  std::ostream& err;  // one sentence per error, nothing else
  Files& files;
  std::string catalogue;                 // directory of the device catalogue
  std::ostream* terminal = nullptr;      // shows how far long commands are; null: nobody looks
  const Additions* additions = nullptr;  // to the verbs (additions.h); null: none
};

// `arguments` without the name of the program. Throws nothing.
int run_cli(const std::vector<std::string>& arguments, const Surroundings& surroundings);

// Names and one line of help of all verbs, in the order of --help.
std::vector<std::pair<std::string, std::string>> cli_verbs();

}  // namespace medley
