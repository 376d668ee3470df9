#include "medley/ops/localize.h"

#include "medley/base/at.h"

namespace medley {

namespace {

const LocalCut* find_cut(const LocalForm& form, std::string_view label) {
  for (const LocalCut& each : form.cuts)
    if (each.cut.label != kNone && form.instance->labels.at(at(each.cut.label)).name == label)
      return &each;
  return nullptr;
}

}  // namespace

bool cuts(const LocalForm& form, std::string_view label) {
  return find_cut(form, label) != nullptr;
}

Size select_offset(const LocalForm& form, std::string_view label) {
  const LocalCut& cut = *find_cut(form, label);
  return cut.offset * cut.behind;
}

Size whole_count(const LocalForm& form, size_t operand, const std::vector<size_t>& dims) {
  Size count(1);
  for (size_t d : dims) {
    Size size = form.operands.at(operand).shape.at(d);
    for (int label : form.instance->operands.at(operand).at(d)) {
      for (const LocalCut& each : form.cuts) {
        if (label != each.cut.label) continue;
        const auto others = divide(size, each.length);
        size = others ? *others * each.full : whole_operand(form, operand).shape[d];
      }
    }
    count = count * size;
  }
  return count;
}

const TensorType& whole_operand(const LocalForm& form, size_t i) {
  return type_of(*form.global, operands(*form.op).at(i));
}

const TensorType& whole_result(const LocalForm& form, size_t i) {
  return type_of(*form.global, form.op->results.at(i));
}

}  // namespace medley
