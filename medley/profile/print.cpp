#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/profile/profile.h"

namespace medley {
namespace {

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(
      -1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string number(double value) {
  MEDLEY_CHECK(std::isfinite(value));
  return fmt::format("{}", value);
}

void add(std::string& out, const OpMeasurement& each) {
  const SizedOp& op = each.op;
  out += fmt::format("      {{\"op\": {}, \"class\": \"{}\", \"dtype\": \"{}\"",
                     quote(op.key),
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
                     quote(each.collective),
                     quote(each.algorithm));
  for (size_t i = 0; i < each.devices.size(); ++i)
    out += (i > 0 ? ", " : "") + quote(each.devices[i]);
  out += fmt::format(
      "], \"lengths\": [{}], \"time_ns\": {}}}", fmt::join(each.lengths, ", "), each.time.value);
}

}  // namespace

std::string print(const Profile& profile) {
  std::string out = fmt::format(
      "{{\n  \"format\": \"medley-profile\",\n  \"version\": 1,\n  \"executor\": {},\n  \"ops\": "
      "{{",
      quote(profile.executor));
  for (size_t i = 0; i < profile.ops.size(); ++i) {
    const std::string& kind = profile.ops[i].kind;
    if (i == 0 || profile.ops[i - 1].kind != kind)
      out += fmt::format("{}\n    {}: [\n", i > 0 ? "\n    ]," : "", quote(kind));
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
                         quote(profile.overlaps[i].kind),
                         number(profile.overlaps[i].slowdown));
    out += "\n  }";
  }
  return out + "\n}\n";
}

}  // namespace medley
