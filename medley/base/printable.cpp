#include "medley/base/printable.h"

#include <fmt/format.h>

#include "medley/base/at.h"

namespace medley {

std::string printable(std::string_view text) {
  std::string result;
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    if ((code < 0x20 && each != '\n' && each != '\t') || code == 0x7f)
      result += fmt::format("\\x{:02x}", code);
    else
      result += each;
  }
  return result;
}

PrintableStream::Buffer::int_type PrintableStream::Buffer::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(0);
  const char one = traits_type::to_char_type(character);
  return xsputn(&one, 1) == 1 ? character : traits_type::eof();
}

std::streamsize PrintableStream::Buffer::xsputn(const char* text, std::streamsize count) {
  target_ << printable({text, at(count)});
  return target_ ? count : 0;
}

int PrintableStream::Buffer::sync() { return target_.flush() ? 0 : -1; }

}  // namespace medley
