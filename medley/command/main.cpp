// The core's program `medley`. The Python package has one with the same name and more commands.

#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "medley/cli/cli.h"
#include "medley/command/additions.h"

namespace {

// Returns the catalogue in data/devices of the program's folder, or of a folder above it.
std::string find_catalogue() {
  std::error_code none;  // on any error the next folder is tried
  auto folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (; folder.has_relative_path(); folder = folder.parent_path())
    if (std::filesystem::is_directory(folder / "data" / "devices", none))
      return folder / "data" / "devices";
  return "data/devices";
}

}  // namespace

int main(int argc, char** argv) {
  medley::LocalFiles files;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::ostream* terminal = isatty(STDERR_FILENO) ? &std::cerr : nullptr;
  const int code = medley::run_cli(
      arguments,
      {std::cout, std::cerr, files, find_catalogue(), terminal, &medley::all_additions()});
  std::cout.flush();
  return code == 0 && !std::cout ? 3 : code;
}
