// Replaces libFuzzer's main for other compilers: tries every file of the given folders, then those
// with random damage. It does not see which branches an input takes.
//
//   checkpoint_fuzz [-runs=100000] [-seed=0] tests/fuzz/corpus/checkpoint ...

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <random>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const fs::path& path : paths) files.push_back(bytes_of(path));
  return files;
}

uint64_t number_behind(std::string_view prefix, std::string_view argument) {
  uint64_t number = 0;
  argument.remove_prefix(prefix.size());
  std::from_chars(argument.data(), argument.data() + argument.size(), number);
  return number;
}

// Applies a few changes: a bit; bytes more, less, repeated, from another input; a digit; the end.
std::string damaged(std::string bytes, const std::string& other, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t edits = 1 + below(4); edits > 0; --edits) {
    const size_t place = below(bytes.size()), length = 1 + below(16);
    switch (bytes.empty() ? 1 : below(6)) {
      case 0:
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
        break;
      case 1:
        bytes.insert(place, length, static_cast<char>(below(256)));
        break;
      case 2:
        bytes.erase(place, length);
        break;
      case 3:
        bytes.insert(place, other.substr(below(other.size()), length));
        break;
      case 4:
        bytes[place] = static_cast<char>('0' + below(10));
        break;
      default:
        bytes.resize(place);
    }
  }
  return bytes;
}

void try_input(const std::string& bytes) {
  std::ofstream("fuzz-last-input", std::ios::binary) << bytes;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int count, char** arguments) {
  uint64_t runs = 100000, seed = 0;
  std::vector<std::string> inputs;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with("-runs="))
      runs = number_behind("-runs=", argument);
    else if (argument.starts_with("-seed="))
      seed = number_behind("-seed=", argument);
    else
      for (std::string& file : files_below(argument)) inputs.push_back(std::move(file));
  }
  if (inputs.empty()) inputs.emplace_back();
  for (const std::string& input : inputs) try_input(input);
  std::mt19937 random(seed);
  for (uint64_t i = 0; i < runs; ++i)
    try_input(damaged(inputs[random() % inputs.size()], inputs[random() % inputs.size()], random));
  std::printf("%zu inputs\n", inputs.size() + runs);
}
