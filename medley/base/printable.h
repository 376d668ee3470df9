#pragma once

// Foreign texts (file and graph names, excerpts) on a terminal.

#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace medley {

// Replaces control characters, which a terminal would obey, by "\\x1b". Keeps line feeds and tabs.
std::string printable(std::string_view text);

// A stream that writes printable text to another. Requires: that outlives this.
class PrintableStream : public std::ostream {
 public:
  explicit PrintableStream(std::ostream& target) : std::ostream(nullptr), buffer_(target) {
    rdbuf(&buffer_);
  }

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& target) : target_(target) {}

   protected:
    int_type overflow(int_type character) override;
    std::streamsize xsputn(const char* text, std::streamsize count) override;
    int sync() override;

   private:
    std::ostream& target_;
  };
  Buffer buffer_;
};

}  // namespace medley
