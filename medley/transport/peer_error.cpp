#include "medley/transport/peer_error.h"

#include <regex>

namespace medley {

std::string peer_error(const std::string& text, const std::map<std::string, std::string>& names) {
  static const std::regex place(R"(^\[\S+\.(cc|cpp|h):\d+\] )"), address(R"(\[([^\]\s]+)\](:\d+))"),
      closed("^Connection closed by peer (\\S+)$");
  std::string sentence = std::regex_replace(text.substr(0, text.find('\n')), place, "");
  sentence = sentence.substr(0, sentence.find(". "));
  std::smatch found;
  if (std::regex_search(sentence, found, address)) {
    const auto name = names.find(found[0]);
    const std::string who = name != names.end() ? name->second : found[1].str() + found[2].str();
    sentence = found.prefix().str() + who + found.suffix().str();
  }
  return std::regex_replace(sentence, closed, "$1 has closed the connection");
}

}  // namespace medley
