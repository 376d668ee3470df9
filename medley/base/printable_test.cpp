#include "medley/base/printable.h"

#include <gmock/gmock.h>

#include <sstream>

namespace medley {
namespace {

// A file name may contain codes that recolour a terminal, or worse.
TEST(Printable, TerminalsDoNotObeyIt) {
  EXPECT_EQ(printable("\x1b[31mred\x7f\r"), "\\x1b[31mred\\x7f\\x0d");
  EXPECT_EQ(printable("two\n\tlines, na\u00efve"), "two\n\tlines, na\u00efve");
  std::ostringstream target;
  PrintableStream stream(target);
  stream << "a\x1b" << 7 << '\x07' << std::flush;
  EXPECT_EQ(target.str(), "a\\x1b7\\x07");
}

}  // namespace
}  // namespace medley
