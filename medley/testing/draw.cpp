#include "medley/testing/draw.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

class Line {
 public:
  Line(const std::string& name, size_t column)
      : text_(fmt::format("{:<5}", name)), column_(column) {}

  // Draws from column `begin` to column `end`, with one blank after it.
  void add(int64_t begin, int64_t end, const std::string& label) {
    const size_t from = kMargin + at(begin) * column_;
    const size_t to = kMargin + at(end) * column_ - 1;
    if (to <= from) return;
    text_.resize(std::max(text_.size(), to), ' ');
    for (size_t i = from; i < to; ++i) text_[i] = i - from < label.size() ? label[i - from] : '-';
    drawn_ = true;
  }
  bool drawn() const { return drawn_; }
  std::string text() const { return text_.substr(0, text_.find_last_not_of(' ') + 1) + '\n'; }

 private:
  static constexpr size_t kMargin = 5;
  std::string text_;
  size_t column_;
  bool drawn_ = false;
};

}  // namespace

std::string draw(const PipelineOrder& order, const Timing& timing, Nanoseconds unit) {
  MEDLEY_CHECK(unit.value > 0);
  MEDLEY_CHECK_EQ(order.size(), timing.calls.size());
  size_t column = 0;
  for (const StageOrder& calls : order)
    for (const PipelineCall& call : calls) column = std::max(column, to_string(call).size() + 1);

  std::string text;
  const auto transfers = [&](const std::string& name,
                             const std::vector<TimeSpan>& spans,
                             const StageOrder& sender,
                             PipelineFunction function) {
    Line line(name, column);
    size_t n = 0;
    for (const PipelineCall& call : sender) {
      if (call.function != function) continue;
      const TimeSpan span = spans[n++];
      line.add(span.begin.value / unit.value,
               span.end.value / unit.value,
               std::to_string(call.microbatch));
    }
    if (line.drawn()) text += line.text();
  };
  for (size_t stage = 0; stage < order.size(); ++stage) {
    Line line(fmt::format("s{}", stage), column);
    for (size_t k = 0; k < order[stage].size(); ++k) {
      const TimeSpan span = timing.calls[stage][k];
      line.add(
          span.begin.value / unit.value, span.end.value / unit.value, to_string(order[stage][k]));
    }
    text += line.text();
    if (stage + 1 == order.size()) break;
    transfers(fmt::format("{}>{}", stage, stage + 1),
              timing.activations[stage],
              order[stage],
              PipelineFunction::kForward);
    transfers(fmt::format("{}<{}", stage, stage + 1),
              timing.gradients[stage],
              order[stage + 1],
              PipelineFunction::kBackward);
  }
  return text;
}

}  // namespace medley
