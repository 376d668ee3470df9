#include "medley/kernels/spare_copies.h"

#include <ATen/ops/resize.h>

#include <map>
#include <mutex>
#include <utility>

#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

struct Spares {
  std::mutex taken;
  std::multimap<std::pair<c10::ScalarType, int64_t>, at::Tensor> of;  // by type and elements
};

Spares& spares() {
  static auto* all = new Spares;  // a writing thread may outlive main()
  return *all;
}

}  // namespace

at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor spare;
  if (tensor.is_cpu()) {
    const std::lock_guard lock(spares().taken);
    if (auto found = spares().of.extract({tensor.scalar_type(), tensor.numel()}))
      spare = std::move(found.mapped());
  }
  if (!spare.defined()) return tensor.clone(at::MemoryFormat::Contiguous);
  spare.resize_(tensor.sizes());
  spare.copy_(tensor);
  return spare;
}

void keep_spare(at::Tensor tensor) {
  if (!is_unique(tensor) || !tensor.is_cpu() || !tensor.is_contiguous()) return;
  const std::lock_guard lock(spares().taken);
  const std::pair key(tensor.scalar_type(), tensor.numel());
  spares().of.emplace(key, std::move(tensor));
}

int64_t spare_bytes() {
  const std::lock_guard lock(spares().taken);
  int64_t bytes = 0;
  for (const auto& [key, tensor] : spares().of) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

void drop_spares() {
  const std::lock_guard lock(spares().taken);
  spares().of.clear();
}

}  // namespace medley
