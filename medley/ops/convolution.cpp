#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// convolution(x, w, bias?, stride, padding, dilation, transposed, output_padding, groups): with a
// bias the input channels are locked, since every device would add it.
std::optional<Instance> convolution(const Graph& graph, const Op& op) {
  const bool bias = operands(op).size() == 3;
  const char* pattern = flag(op, 6) ? (bias ? "n (g c!) x..!, (g c) o k..!, (g o)? -> n (g o) y..!"
                                            : "n (g c) x..!, (g c) o k..!, (g o)? -> n (g o) y..!")
                                    : (bias ? "n (g c!) x..!, (g o) c k..!, (g o)? -> n (g o) y..!"
                                            : "n (g c) x..!, (g o) c k..!, (g o)? -> n (g o) y..!");
  return instantiate(pattern, "{0+2}{1+2}", graph, op);
}

// convolution_backward(grad, x, w, bias sizes?, stride, padding, dilation, transposed,
// output_padding, groups, mask)
std::optional<Instance> convolution_backward(const Graph& graph, const Op& op) {
  return instantiate(
      flag(op, 7)
          ? "n (g o) y..!, n (g c) x..!, (g c) o k..! -> n (g c) x.., (g c) o k.., (g o) =c"
          : "n (g o) y..!, n (g c) x..!, (g o) c k..! -> n (g c) x.., (g o) c k.., (g o) =c",
      "{0}",
      graph,
      op);
}

void set_groups(Op& local, size_t argument, const Size& channels, const Size& per_group) {
  if (const auto groups = divide(channels, per_group)) local.arguments.at(argument) = *groups;
}

void convolution_local(Op& local, const LocalForm& form) {
  const Size& channels = (flag(local, 6) ? form.results : form.operands).at(0).shape.at(1);
  set_groups(local, 8, channels, form.operands.at(1).shape.at(1));
}

void convolution_backward_local(Op& local, const LocalForm& form) {
  const Size& outs = form.operands.at(0).shape.at(1);
  set_groups(local,
             9,
             flag(local, 7) ? outs : form.operands.at(1).shape.at(1),
             form.operands.at(2).shape.at(1));
  if (!is_none(local, 3)) local.arguments.at(3) = std::vector<Size>{outs};
}

}  // namespace

std::vector<Rule> convolution_rules() {
  constexpr WorkClass kConvolution = WorkClass::kConvolution;
  return {
      {"aten.convolution.default", "", "", convolution_local, convolution, kConvolution},
      {"aten.convolution_backward.default",
       "",
       "",
       convolution_backward_local,
       convolution_backward,
       kConvolution},
      {"aten.max_pool2d_with_indices.default", ".. h! w! -> .. y! z!, .. y z", ""},
      {"aten.max_pool2d_with_indices_backward.default",
       ".. y! z!, .. h! w!, .. y z -> .. h w",
       "{0}"},
      {"aten.avg_pool2d.default", ".. h! w! -> .. y! z!", "{0}"},
      {"aten.avg_pool2d_backward.default", ".. y! z!, .. h! w! -> .. h w", "{0}"},
      {"aten._adaptive_avg_pool2d.default", ".. h! w! -> .. y! z!", "{0}"},
      {"aten._adaptive_avg_pool2d_backward.default", ".. y! z!, .. h! w! -> .. h w", "{0}"},
      {"aten.adaptive_max_pool2d.default", ".. h! w! -> .. y! z!, .. y z", ""},
      {"aten.adaptive_max_pool2d_backward.default", ".. y! z!, .. h! w!, .. y z -> .. h w", "{0}"},
      {"aten.fractional_max_pool2d.default", ".. h! w!, .. s! -> .. y! z!, .. y z", ""},
      {"aten.fractional_max_pool2d_backward.default",
       ".. y! z!, .. h! w!, .. y z -> .. h w",
       "{0}"},
      {"aten.max_pool3d_with_indices.default", ".. d! h! w! -> .. x! y! z!, .. x y z", ""},
      {"aten.max_pool3d_with_indices_backward.default",
       ".. x! y! z!, .. d! h! w!, .. x y z -> .. d h w",
       "{0}"},
      {"aten.avg_pool3d.default", ".. d! h! w! -> .. x! y! z!", "{0}"},
      {"aten.avg_pool3d_backward.default", ".. x! y! z!, .. d! h! w! -> .. d h w", "{0}"},
      {"aten.reflection_pad1d.default", ".. w! -> .. z!", "{0}"},
      {"aten.reflection_pad1d_backward.default", ".. z!, .. w! -> .. w", "{0}"},
      {"aten.reflection_pad2d.default", ".. h! w! -> .. y! z!", "{0}"},
      {"aten.reflection_pad2d_backward.default", ".. y! z!, .. h! w! -> .. h w", "{0}"},
      {"aten.replication_pad1d.default", ".. w! -> .. z!", "{0}"},
      {"aten.replication_pad1d_backward.default", ".. z!, .. w! -> .. w", "{0}"},
      {"aten.replication_pad2d.default", ".. h! w! -> .. y! z!", "{0}"},
      {"aten.replication_pad2d_backward.default", ".. y! z!, .. h! w! -> .. h w", "{0}"},
      {"aten.im2col.default", "n c! h! w! -> n y! z!", "{0}"},
      {"aten.col2im.default", "n y! z! -> n c! h! w!", "{0}"},
      {"aten.pixel_shuffle.default", ".. c! h! w! -> .. x! y! z!", "{0}"},
      {"aten.pixel_unshuffle.default", ".. c! h! w! -> .. x! y! z!", "{0}"},
      {"aten.channel_shuffle.default", "n c! x.. -> n c x..", "{0}"},
      {"aten.grid_sampler_2d.default", "n c h! w!, n y z t! -> n c y z", "{0}"},
      {"aten.grid_sampler_2d_backward.default",
       "n c y z, n c h! w!, n y z t! -> n c h w, n y z t",
       "{0}"},
  };
}

}  // namespace medley
