#include "medley/kernels/spare_copies.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

namespace medley {
namespace {

class SpareCopiesTest : public ::testing::Test {
 protected:
  ~SpareCopiesTest() override { drop_spares(); }

  static at::Tensor six(double from) { return at::arange(from, from + 6); }
};

TEST_F(SpareCopiesTest, ACopyTakesMemoryOfItsSizeOnce) {
  at::Tensor held = six(0);
  const void* memory = held.const_data_ptr();
  keep_spare(std::move(held));
  EXPECT_EQ(spare_bytes(), 24);
  const at::Tensor turned = six(1).view({2, 3}).t();
  const at::Tensor copy = copy_of(turned), next = copy_of(turned);
  EXPECT_EQ(spare_bytes(), 0);
  EXPECT_EQ(copy.const_data_ptr(), memory);
  EXPECT_NE(next.const_data_ptr(), memory);
  for (const at::Tensor& each : {copy, next}) {
    EXPECT_TRUE(at::equal(each, turned));
    EXPECT_TRUE(each.is_contiguous());
  }
}

TEST_F(SpareCopiesTest, SharedTensorsAndOtherTypesAreNotTaken) {
  const at::Tensor shared = six(0), part = six(0);
  keep_spare(shared);
  keep_spare(part.view({6}));
  keep_spare(six(0).view({2, 3}).t());
  keep_spare(six(0).to(at::kDouble));
  const at::Tensor copy = copy_of(shared);
  EXPECT_NE(copy.const_data_ptr(), shared.const_data_ptr());
  EXPECT_NE(copy.const_data_ptr(), part.const_data_ptr());
  EXPECT_EQ(copy.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(copy, shared));
}

}  // namespace
}  // namespace medley
