#include "medley/cluster/kind_names.h"

#include <gmock/gmock.h>

#include <cctype>

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Catalogue& our_kinds() {
  static const Catalogue catalogue = read_catalogue("data/devices");
  return catalogue;
}
std::vector<std::string> meant(std::string_view name) { return kinds_meant(our_kinds(), name); }

TEST(KindNames, AsPeopleWriteThem) {
  const std::pair<const char*, const char*> expected[] = {
      {"T4", "T4-16GB"},
      {"t4", "T4-16GB"},
      {"3090", "RTX3090-24GB"},
      {"RTX 3090", "RTX3090-24GB"},
      {"rtx3090", "RTX3090-24GB"},
      {"geforce_rtx_3090_ti", "RTX3090Ti-24GB"},
      {"RTX 4060Ti 16G", "RTX4060Ti-16GB"},
      {"4060 ti 16gb", "RTX4060Ti-16GB"},
      {"4060ti-8gb", "RTX4060Ti-8GB"},
      {"4070", "RTX4070-12GB"},
      {"4070 super", "RTX4070Super-12GB"},
      {"4070 ti super", "RTX4070TiSuper-16GB"},
      {"4070TiSuper", "RTX4070TiSuper-16GB"},
      {"3060", "RTX3060-12GB"},
      {"3080 12 GB", "RTX3080-12GB"},
      {"2080 Ti", "RTX2080Ti-11GB"},
      {"1080ti", "GTX1080Ti-11GB"},
      {"GTX 1660", "GTX1660-6GB"},
      {"titan rtx", "TitanRTX-24GB"},
      {"Quadro RTX 8000", "QuadroRTX8000-48GB"},
      {"a6000", "RTXA6000-48GB"},
      {"RTX 6000 Ada", "RTX6000Ada-48GB"},
      {"RTX PRO 6000", "RTXPRO6000Blackwell-96GB"},
      {"A10", "A10-24GB"},
      {"a10g", "A10G-24GB"},
      {"A100 80", "A100-80GB"},
      {"A100 80G", "A100-80GB"},
      {"a100 sxm 40gb", "A100-40GB"},
      {"V100 PCIe 32GB", "V100-PCIe-32GB"},
      {"P100", "P100-16GB"},
      {"H100", "H100-80GB"},
      {"h100 pcie", "H100-PCIe-80GB"},
      {"H100 NVL", "H100-NVL-94GB"},
      {"gh200", "GH200-96GB"},
      {"B200", "B200-180GB"},
      {"GB200", "GB200-186GB"},
      {"mi250x", "MI250X-64GB"},
      {"MI300X", "MI300X-192GB"},
      {"cpu", "CPU"},
  };
  for (const auto& [name, kind] : expected) EXPECT_THAT(meant(name), ElementsAre(kind)) << name;
}

// Names printed by torch.cuda.get_device_name() and nvidia-smi.
TEST(KindNames, AsDriversWriteThem) {
  const std::pair<const char*, const char*> expected[] = {
      {"Tesla V100-SXM2-16GB", "V100-16GB"},
      {"Tesla V100-PCIE-16GB", "V100-PCIe-16GB"},
      {"Tesla P100-PCIE-16GB", "P100-PCIe-16GB"},
      {"Tesla T4", "T4-16GB"},
      {"NVIDIA A100-SXM4-80GB", "A100-80GB"},
      {"NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"},
      {"NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"},
      {"NVIDIA H100 80GB HBM3", "H100-80GB"},
      {"NVIDIA H100 PCIe", "H100-PCIe-80GB"},
      {"NVIDIA GeForce GTX 1080 Ti", "GTX1080Ti-11GB"},
      {"NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSuper-16GB"},
      {"NVIDIA RTX A6000", "RTXA6000-48GB"},
      {"NVIDIA RTX 6000 Ada Generation", "RTX6000Ada-48GB"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTXPRO6000Blackwell-96GB"},
      {"NVIDIA L40S", "L40S-48GB"},
      {"AMD Instinct MI210", "MI210-64GB"},
  };
  for (const auto& [name, kind] : expected) EXPECT_THAT(meant(name), ElementsAre(kind)) << name;
}

// If the name omits the memory, all types are listed.
TEST(KindNames, AmbiguousNameListsItsKinds) {
  EXPECT_THAT(meant("A100"), ElementsAre("A100-40GB", "A100-80GB"));
  EXPECT_THAT(meant("a100 pcie"), ElementsAre("A100-PCIe-40GB", "A100-PCIe-80GB"));
  EXPECT_THAT(meant("V100"), ElementsAre("V100-16GB", "V100-32GB"));
  EXPECT_THAT(meant("3080"), ElementsAre("RTX3080-10GB", "RTX3080-12GB"));
  EXPECT_THAT(meant("4060 Ti"), ElementsAre("RTX4060Ti-16GB", "RTX4060Ti-8GB"));
  EXPECT_THAT(meant("RTX 6000"),
              ElementsAre("QuadroRTX6000-24GB", "RTX6000Ada-48GB", "RTXPRO6000Blackwell-96GB"));
}

// A 4090 Laptop has another chip, and no 3090 has 12 GB.
TEST(KindNames, OtherCardsAreNotOurs) {
  for (const char* name : {"NVIDIA GeForce RTX 4090 Laptop GPU",
                           "RTX 4090 D",
                           "3090 12GB",
                           "T4 pcie",
                           "4",
                           "16gb",
                           "nvidia",
                           "ti",
                           "",
                           "x"})
    EXPECT_THAT(meant(name), IsEmpty()) << name;
}

TEST(KindNames, EachKindsOwnNameMeansIt) {
  for (const auto& [name, kind] : our_kinds()) {
    EXPECT_THAT(meant(name), ElementsAre(name));
    std::string lower = name;
    for (char& c : lower) c = c == '-' ? ' ' : static_cast<char>(std::tolower(c));
    EXPECT_THAT(meant(lower), ElementsAre(name)) << lower;
  }
}

TEST(KindNames, NearNamesComeInOrder) {
  const std::vector<std::string> known = {"RTX4090-24GB", "RTX4080-16GB", "T4-16GB", "half"};
  EXPECT_THAT(near_names(known, "hlaf"), ElementsAre("half"));
  EXPECT_THAT(near_names(known, "RTX 4090 Laptop"), ElementsAre("RTX4090-24GB"));
  EXPECT_THAT(near_names(known, "RTX4O90"), ElementsAre("RTX4090-24GB", "RTX4080-16GB"));
  EXPECT_THAT(near_names(known, "abacus"), IsEmpty());
}

}  // namespace
}  // namespace medley
