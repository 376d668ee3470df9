#include "medley/ops/localize.h"

#include "medley/base/error.h"

namespace medley {

bool cuts(const LocalForm& form, std::string_view label) {
  if (!form.cut || form.cut->label == kNone) return false;
  return form.instance->labels.at(static_cast<size_t>(form.cut->label)).name == label;
}

Size select_offset(const LocalForm& form) {
  const Size& rows = form.instance->labels.at(static_cast<size_t>(form.cut->label)).size;
  return form.offset * divide(rows, form.full).value_or(Size(1));
}

Size whole_count(const LocalForm& form, size_t operand, const std::vector<size_t>& dims) {
  Size count(1);
  for (size_t d : dims) {
    Size size = form.operands.at(operand).shape.at(d);
    if (form.cut) {
      for (int label : form.instance->operands.at(operand).at(d)) {
        if (label != form.cut->label) continue;
        const Size& whole = whole_operand(form, operand).shape[d];
        const auto others = divide(size, form.length);
        size = others ? *others * form.full : whole;
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
