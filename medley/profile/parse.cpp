#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "medley/base/communication_kind.h"
#include "medley/base/error.h"
#include "medley/base/json_place.h"
#include "medley/base/json_string.h"
#include "medley/profile/profile.h"

namespace medley {
namespace {

constexpr int64_t kMostTime = int64_t{1} << 60;   // ns: 36 years
constexpr int64_t kMostBytes = int64_t{1} << 50;  // 1 PiB: sums of many still fit
constexpr int64_t kMostRepetitions = 1'000'000'000;
constexpr double kMostWork = 1e30;
constexpr double kMostSlowdown = 1000;
constexpr WorkClass kClasses[] = {
    WorkClass::kMatmul, WorkClass::kAttention, WorkClass::kConvolution, WorkClass::kMemory};

std::string read_filled(const JsonPlace& at, std::string_view expected) {
  if (!at.json->is_string() || at.json->get_ref<const std::string&>().empty()) at.refuse(expected);
  return at.json->get<std::string>();
}

double read_number(const JsonPlace& at, double least, double most, std::string_view expected) {
  if (!at.json->is_number()) at.refuse(expected);
  const auto value = at.json->get<double>();
  if (!(value >= least && value <= most)) at.refuse(expected);
  return value;
}

double read_work(const JsonPlace& at) {
  return read_number(at, 0, kMostWork, "a number of operations or bytes, not negative");
}

Nanoseconds read_time(const JsonPlace& at) {
  if (!at.json->is_number_integer()) at.refuse("whole nanoseconds, at least 1");
  if (at.json->is_number_unsigned() ? at.json->get<uint64_t>() > static_cast<uint64_t>(kMostTime)
                                    : at.json->get<int64_t>() < 1)
    at.refuse("whole nanoseconds, at least 1");
  const auto value = at.json->get<int64_t>();
  if (value < 1) at.refuse("whole nanoseconds, at least 1");
  return {value};
}

WorkClass read_class(const JsonPlace& at) {
  const std::string text = read_text(at);
  for (WorkClass each : kClasses)
    if (class_name(each) == text) return each;
  at.refuse("\"matmul\", \"attention\", \"convolution\" or \"memory\"");
}

DType read_dtype(const JsonPlace& at) {
  const auto dtype = parse_dtype(read_text(at));
  if (!dtype) at.refuse("a dtype, such as \"f32\"");
  return *dtype;
}

// The op's name precedes the operands.
void read_key(const JsonPlace& at, SizedOp& op) {
  op.key = read_text(at);
  const size_t end = op.key.find('(');
  if (end == std::string::npos || end == 0)
    at.refuse("an op with its operands: \"aten.mm.default(f32[2,3], f32[3,4]) -> f32[2,4]\"");
  op.op = op.key.substr(0, end);
}

OpMeasurement read_op(const JsonPlace& at, const std::string& kind) {
  OpMeasurement each;
  each.kind = kind;
  read_object(at,
              {{"op", true, [&](const JsonPlace& p) { read_key(p, each.op); }},
               {"class", true, [&](const JsonPlace& p) { each.op.work_class = read_class(p); }},
               {"dtype", true, [&](const JsonPlace& p) { each.op.dtype = read_dtype(p); }},
               {"flops", false, [&](const JsonPlace& p) { each.op.work.flops = read_work(p); }},
               {"bytes", true, [&](const JsonPlace& p) { each.op.work.bytes = read_work(p); }},
               {"time_ns", true, [&](const JsonPlace& p) { each.time = read_time(p); }},
               {"repetitions", true, [&](const JsonPlace& p) {
                  each.repetitions = static_cast<int>(read_integer(p, 1, kMostRepetitions));
                }}});
  return each;
}

CommunicationKind read_kind(const JsonPlace& at) {
  const std::optional<CommunicationKind> kind = find_communication_kind(read_text(at));
  if (kind && traits_of(*kind).own_group) return *kind;
  std::vector<std::string> names;
  for (const CommunicationTraits& each : kCommunications)
    if (each.own_group) names.push_back(json_string(std::string(each.name)));
  at.refuse(fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back()));
}

CollectiveMeasurement read_collective(const JsonPlace& at) {
  CollectiveMeasurement each;
  CommunicationKind kind{};
  read_object(at,
              {{"collective",
                true,
                [&](const JsonPlace& p) {
                  kind = read_kind(p);
                  each.collective = to_string(kind);
                }},
               {"algorithm",
                true,
                [&](const JsonPlace& p) {
                  each.algorithm = read_filled(p, "the name of an algorithm, or \"backend\"");
                }},
               {"devices",
                true,
                [&](const JsonPlace& p) {
                  each.devices = read_texts(p);
                  if (each.devices.size() < 2 ||
                      std::set<std::string>(each.devices.begin(), each.devices.end()).size() <
                          each.devices.size())
                    p.refuse("at least two devices, each once");
                }},
               {"lengths",
                true,
                [&](const JsonPlace& p) {
                  each.lengths = read_integers(p, 0, kMostBytes);
                  const size_t expected = num_lengths(kind, each.devices.size());
                  if (each.lengths.size() != expected)
                    p.refuse(fmt::format("{} lengths of {} among {} devices",
                                         expected,
                                         each.collective,
                                         each.devices.size()));
                }},
               {"time_ns", true, [&](const JsonPlace& p) { each.time = read_time(p); }}});
  return each;
}

// Sorts measurements and rejects duplicates; `place`: their location, as text.
template <typename Measurement, typename Place>
void sort_unique(std::vector<Measurement>& all, std::string_view file, const Place& place) {
  const auto before = [](const Measurement& a, const Measurement& b) { return key(a) < key(b); };
  std::stable_sort(all.begin(), all.end(), before);
  const auto twice =
      std::adjacent_find(all.begin(), all.end(), [](const Measurement& a, const Measurement& b) {
        return key(a) == key(b);
      });
  if (twice != all.end())
    throw Error(Blame::kCaller,
                fmt::format("{}: {} twice, expected each measurement once", file, place(*twice)));
}

void read_ops(const JsonPlace& at, Profile& profile) {
  if (!at.json->is_object()) at.refuse("an object of lists by device type");
  for (const auto& [kind, list] : at.json->items()) {
    if (kind.empty()) at.refuse("names of device types");
    for (const JsonPlace& each : read_list(at.member(kind)))
      profile.ops.push_back(read_op(each, kind));
  }
  sort_unique(profile.ops, at.file, [](const OpMeasurement& each) {
    return fmt::format("ops: found {} of {}", each.op.key, each.kind);
  });
}

void read_collectives(const JsonPlace& at, Profile& profile) {
  for (const JsonPlace& each : read_list(at)) profile.collectives.push_back(read_collective(each));
  sort_unique(profile.collectives, at.file, [](const CollectiveMeasurement& each) {
    return fmt::format("collectives: found {} by {} among {} of {} bytes",
                       each.collective,
                       each.algorithm,
                       fmt::join(each.devices, ", "),
                       fmt::join(each.lengths, ", "));
  });
}

void read_overlaps(const JsonPlace& at, Profile& profile) {
  if (!at.json->is_object()) at.refuse("an object of slowdowns by device type");
  for (const auto& [kind, value] : at.json->items())  // sorted
    profile.overlaps.push_back(
        {kind, read_number(at.member(kind), 1, kMostSlowdown, "a slowdown from 1 to 1000")});
}

}  // namespace

Profile parse_profile(std::string_view text, std::string_view file) {
  const nlohmann::json json = parse_json(text, file);
  Profile profile;
  read_object({&json, std::string(file), ""},
              {{"format", true, [](const JsonPlace& p) { read_format(p, "medley-profile"); }},
               {"version", true, read_version},
               {"executor",
                true,
                [&](const JsonPlace& p) {
                  profile.executor = read_filled(p, "the executor and its version");
                }},
               {"ops", true, [&](const JsonPlace& p) { read_ops(p, profile); }},
               {"collectives", false, [&](const JsonPlace& p) { read_collectives(p, profile); }},
               {"overlaps", false, [&](const JsonPlace& p) { read_overlaps(p, profile); }}});
  return profile;
}

}  // namespace medley
