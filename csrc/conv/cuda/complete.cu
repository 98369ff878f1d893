// What follows the sums of a convolution, where the kernel that made them does not do it: a pass
// over the image that is computed, in place.
#include <algorithm>
#include <limits>

#include "conv/cuda/epilogue.h"
#include "conv/cuda/kernels.h"
#include "conv/reference.h"
#include "core/cuda/divide.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

// The image that is computed.
struct CompletedImage {
  int64_t channels; // of all groups
  int64_t size[3], stride[5];

  explicit CompletedImage(const ConvProblem& p)
      : channels(p.groups * (p.pass == ConvPass::forward ? p.oc : p.ic)) {
    const bool is_dst = p.pass == ConvPass::forward;
    std::copy_n(is_dst ? p.dst_size : p.src_size, 3, size);
    std::copy_n(is_dst ? p.dst_stride : p.src_stride, 5, stride);
  }

  int64_t extent(const ConvProblem& p, int axis) const {
    return axis == 0 ? p.n : axis == 1 ? channels : size[axis - 2];
  }

  // The innermost axis; axes of one element do not count.
  int innermost(const ConvProblem& p) const {
    for (int axis = 0; axis < 5; axis++)
      if (extent(p, axis) > 1 && stride[axis] == 1)
        return axis;
    return 4;
  }

  // Whether the elements follow each other without gaps, and are counted by 31 bits.
  bool is_dense(const ConvProblem& p) const {
    int64_t elements = 1, span = 1;
    for (int axis = 0; axis < 5; axis++) {
      elements *= extent(p, axis);
      span += (extent(p, axis) - 1) * stride[axis];
    }
    return elements == span && span <= std::numeric_limits<int32_t>::max();
  }
};

// Elements along the innermost axis, n of them.
template <class T, int n>
struct CompleteRun {
  ConvProblem p;
  CompletedImage image;
  Divisor channel_stride, channels;
  int axis;
  bool same_strides; // of the residual, if there is one, as of the image

  CompleteRun(const ConvProblem& p, const CompletedImage& image)
      : p(p),
        image(image),
        channel_stride(image.channels == 1 ? 1 : image.stride[1]),
        channels(image.channels),
        axis(image.innermost(p)),
        same_strides(
            p.residual == nullptr ||
            std::equal(p.residual_stride, p.residual_stride + 5, image.stride)) {}

  __device__ void operator()(int64_t run) const {
    using C = compute_t<T>;
    const auto offset = static_cast<uint32_t>(run * n);
    const Vector<T, n> sums = load_vector<n>(static_cast<const T*>(p.out) + offset);
    C u[n];
#pragma unroll
    for (int e = 0; e < n; e++)
      u[e] = static_cast<C>(sums.at[e]);
    int64_t residual = offset;
    if (p.bias != nullptr || !same_strides) {
      uint32_t of_channel = channel_stride.divide(offset);
      const auto channel = static_cast<int64_t>(channels.split(of_channel));
      if (p.bias != nullptr)
        add_bias(channel, u);
      if (!same_strides)
        residual = image_index(offset, p.n, /*groups=*/1, image.channels, image.size, image.stride)
                       .offset(channel, p.residual_stride);
    }
    Epilogue::of(p).complete<T, n, /*is_whole_kernel=*/true>(
        u, n, offset, 1, residual, p.residual_stride[axis], true);
  }

 private:
  __device__ void add_bias(int64_t channel, compute_t<T> (&u)[n]) const {
    const T* const bias = static_cast<const T*>(p.bias) + channel * p.bias_stride;
    const int64_t step = axis == 1 ? p.bias_stride : 0;
#pragma unroll
    for (int e = 0; e < n; e++)
      u[e] += static_cast<compute_t<T>>(bias[e * step]);
  }
};

template <class T, int n>
void complete(const ConvProblem& p, const CompletedImage& image) {
  const int64_t elements = p.n * image.channels * product(image.size);
  for_each_element(elements / n, CompleteRun<T, n>(p, image));
}

} // namespace

bool can_complete(const ConvProblem& p) {
  return !has_epilogue(p) || CompletedImage(p).is_dense(p);
}

void complete(const ConvProblem& p) {
  if (!has_epilogue(p))
    return;
  const CompletedImage image(p);
  dispatch(FloatingTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    constexpr int kRun = kWidestAccess / sizeof(T);
    const int axis = image.innermost(p);
    const bool runs = image.extent(p, axis) % kRun == 0 &&
        Epilogue::of(p).can_move<T>(kRun, image.stride, p.residual_stride, axis);
    runs ? complete<T, kRun>(p, image) : complete<T, 1>(p, image);
  });
}

} // namespace torch_dnnl::cuda
