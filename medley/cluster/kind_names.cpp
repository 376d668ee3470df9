#include "medley/cluster/kind_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

namespace medley {
namespace {

constexpr size_t kMostNear = 5;

// Words that do not identify the type.
constexpr std::array<std::string_view, 18> kNoise = {"nvidia",
                                                     "geforce",
                                                     "tesla",
                                                     "amd",
                                                     "instinct",
                                                     "radeon",
                                                     "generation",
                                                     "edition",
                                                     "gpu",
                                                     "workstation",
                                                     "accelerator",
                                                     "hbm2",
                                                     "hbm2e",
                                                     "hbm3",
                                                     "hbm3e",
                                                     "sxm",
                                                     "vram",
                                                     "memory"};
// Words that may join a number in front or behind: "RTX4090", "4070TiSuper".
constexpr std::array<std::string_view, 8> kPrefixes = {
    "nvidia", "geforce", "tesla", "rtx", "gtx", "quadro", "titan", "pro"};
constexpr std::array<std::string_view, 7> kSuffixes = {
    "ti", "super", "pcie", "nvl", "sxm", "ada", "blackwell"};
// The series, which users omit.
constexpr std::array<std::string_view, 2> kSeries = {"rtx", "gtx"};

template <typename Words>
bool holds(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_number(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), is_digit);
}

// Parts of a name.
struct Words {
  std::set<std::string> model;  // "rtx", "4060", "ti"
  std::string gigabytes;        // "16"; empty: absent
  std::string form;             // "pcie" or "nvl"; empty: absent, or SXM
};

void add_word(Words& words, std::string_view word) {
  if (word == "pcie" || word == "nvl")
    words.form = word;
  else if (!holds(kNoise, word))
    words.model.insert(std::string(word));
}

// Removes a trailing "16gb"; "16g" only if nothing else remains (an A10G has no 10 GB).
std::string_view without_memory(std::string_view word, Words& words) {
  std::string_view rest = word;
  for (std::string_view unit : {"gib", "gb", "g"}) {
    if (!rest.ends_with(unit)) continue;
    rest.remove_suffix(unit.size());
    size_t begin = rest.size();
    while (begin > 0 && is_digit(rest[begin - 1])) --begin;
    if (begin == rest.size() || (begin > 0 && unit == "g")) return word;
    words.gigabytes = rest.substr(begin);
    return rest.substr(0, begin);
  }
  return word;
}

// Turns "sxm4" into "sxm".
std::string_view without_generation(std::string_view word) {
  const size_t at = word.rfind("sxm");
  return at != std::string_view::npos && is_number(word.substr(at + 3)) ? word.substr(0, at + 3)
                                                                        : word;
}

void take_apart(std::string_view word, Words& words) {
  word = without_memory(word, words);
  word = without_generation(word);
  for (bool found = true; found;) {
    found = false;
    for (std::string_view prefix : kPrefixes)
      if (word.size() > prefix.size() && word.starts_with(prefix)) {
        add_word(words, prefix);
        word.remove_prefix(prefix.size());
        found = true;
      }
    for (std::string_view suffix : kSuffixes)
      if (word.size() > suffix.size() && word.ends_with(suffix)) {
        add_word(words, suffix);
        word.remove_suffix(suffix.size());
        found = true;
      }
  }
  if (!word.empty()) add_word(words, word);
}

Words words_of(std::string_view name) {
  Words words;
  std::string word, before;
  for (size_t i = 0; i <= name.size(); ++i) {
    const auto c = i < name.size() ? static_cast<unsigned char>(name[i]) : '\0';
    if (std::isalnum(c) != 0) {
      word += static_cast<char>(std::tolower(c));
      continue;
    }
    if ((word == "gb" || word == "gib") && is_number(before)) {  // "24 GB"
      words.model.erase(before);
      words.gigabytes = before;
    } else if (!word.empty()) {
      take_apart(word, words);
    }
    before = std::exchange(word, {});
  }
  return words;
}

// Returns whether a type has all parts of a name. A number may be its gigabytes: "A100 80".
bool fits(const Words& kind, const Words& name) {
  if (name.model.empty()) return false;
  if (!name.gigabytes.empty() && name.gigabytes != kind.gigabytes) return false;
  if (!name.form.empty() && name.form != kind.form) return false;
  size_t models = 0;  // "ti" alone is no model
  for (const std::string& word : name.model) {
    if (kind.model.contains(word))
      models += holds(kSuffixes, word) || holds(kSeries, word) ? 0 : 1;
    else if (word != kind.gigabytes)
      return false;
  }
  return models > 0;
}

// Returns whether the type has words that the name omits, its series aside: "ti", "super".
bool says_more(const Words& kind, const Words& name) {
  return std::any_of(kind.model.begin(), kind.model.end(), [&](const std::string& word) {
    return !name.model.contains(word) && !holds(kSeries, word);
  });
}

template <typename Unwanted>
void prefer_others(std::vector<std::string>& names, const Unwanted& unwanted) {
  if (!std::all_of(names.begin(), names.end(), unwanted)) std::erase_if(names, unwanted);
}

std::string squashed(std::string_view name) {
  std::string result;
  for (char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Returns the number of letters to insert, delete or replace.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

bool share_a_model(const Words& a, const Words& b) {
  return std::any_of(a.model.begin(), a.model.end(), [&](const std::string& word) {
    return std::any_of(word.begin(), word.end(), is_digit) && b.model.contains(word);
  });
}

}  // namespace

std::vector<std::string> kinds_meant(const Catalogue& catalogue, std::string_view name) {
  if (const auto exact = catalogue.find(std::string(name)); exact != catalogue.end())
    return {exact->first};
  const Words said = words_of(name);
  std::vector<std::string> found;
  for (const auto& [each, kind] : catalogue)
    if (fits(words_of(each), said)) found.push_back(each);
  prefer_others(found, [&](const std::string& each) { return says_more(words_of(each), said); });
  prefer_others(found, [&](const std::string& each) {
    return said.form.empty() && !words_of(each).form.empty();
  });
  return found;
}

std::vector<std::string> near_names(const std::vector<std::string>& known, std::string_view name) {
  const std::string wanted = squashed(name);
  const Words said = words_of(name);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& each : known) {
    const std::string whole = squashed(each);
    const std::string model = squashed(std::string_view(each).substr(0, each.rfind('-')));
    const size_t away = std::min(distance(wanted, whole), distance(wanted, model));
    if (share_a_model(words_of(each), said))
      near.emplace_back(0, each);
    else if (away <= std::max<size_t>(1, wanted.size() / 2))
      near.emplace_back(away, each);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> names;
  for (const auto& [away, each] : near)
    if (names.size() < kMostNear) names.push_back(each);
  return names;
}

}  // namespace medley
