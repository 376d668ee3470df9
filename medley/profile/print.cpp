#include <fmt/format.h>

#include <cmath>

#include "medley/base/error.h"
#include "medley/base/json_string.h"
#include "medley/profile/profile.h"

namespace medley {
namespace {

std::string number(double value) {
  MEDLEY_CHECK(std::isfinite(value));
  return fmt::format("{}", value);
}

void add(std::string& out, const OpMeasurement& each) {
  const SizedOp& op = each.op;
  out += fmt::format("      {{\"op\": {}, \"class\": \"{}\", \"dtype\": \"{}\"",
                     json_string(op.key),
                     class_name(op.work_class),
                     to_string(op.dtype));
  if (op.work.flops > 0) out += ", \"flops\": " + number(op.work.flops);
  out += fmt::format(", \"bytes\": {}, \"time_ns\": {}, \"repetitions\": {}}}",
                     number(op.work.bytes),
                     each.time.value,
                     each.repetitions);
}

void add(std::string& out, const CollectiveMeasurement& each) {
  out += fmt::format("    {{\"collective\": {}, \"algorithm\": {}, \"devices\": [",
                     json_string(each.collective),
                     json_string(each.algorithm));
  for (size_t i = 0; i < each.devices.size(); ++i)
    out += (i > 0 ? ", " : "") + json_string(each.devices[i]);
  out += fmt::format(
      "], \"lengths\": [{}], \"time_ns\": {}}}", fmt::join(each.lengths, ", "), each.time.value);
}

}  // namespace

std::string print(const Profile& profile) {
  std::string out = fmt::format(
      "{{\n  \"format\": \"medley-profile\",\n  \"version\": 1,\n  \"executor\": {},\n  \"ops\": "
      "{{",
      json_string(profile.executor));
  for (size_t i = 0; i < profile.ops.size(); ++i) {
    const std::string& kind = profile.ops[i].kind;
    if (i == 0 || profile.ops[i - 1].kind != kind)
      out += fmt::format("{}\n    {}: [\n", i > 0 ? "\n    ]," : "", json_string(kind));
    else
      out += ",\n";
    add(out, profile.ops[i]);
  }
  out += profile.ops.empty() ? "}" : "\n    ]\n  }";
  if (!profile.collectives.empty()) {
    out += ",\n  \"collectives\": [";
    for (size_t i = 0; i < profile.collectives.size(); ++i) {
      out += i > 0 ? ",\n" : "\n";
      add(out, profile.collectives[i]);
    }
    out += "\n  ]";
  }
  if (!profile.overlaps.empty()) {
    out += ",\n  \"overlaps\": {";
    for (size_t i = 0; i < profile.overlaps.size(); ++i)
      out += fmt::format("{}\n    {}: {}",
                         i > 0 ? "," : "",
                         json_string(profile.overlaps[i].kind),
                         number(profile.overlaps[i].slowdown));
    out += "\n  }";
  }
  return out + "\n}\n";
}

}  // namespace medley
