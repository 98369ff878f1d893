// The gradient of the weights of a convolution with few channels in a group: for each pair of an
// output and an input channel and each tap the sum over all outputs, of outputs times the inputs
// that they meet. The outputs are cut into slices; a block sums one, for some channels and all rows
// of the kernel, into scratch memory, and then the sums of the slices are added in their order.
// What is summed where depends on sizes alone.
//
// With channels innermost a thread has a vector of channels and one part of a kernel row, and goes
// along the rows of its slice. Otherwise the lanes of a warp have neighbouring outputs of one
// channel and add up what each has found. Threads of one block read the same rows, from the
// first-level cache all but the first.
#include <algorithm>

#include "conv/cuda/depthwise/depthwise.h"
#include "core/cuda/launch.h"

namespace torch_dnnl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kVector = 4;    // channels of a thread
constexpr int kOutputs = 4;   // of a row, at once
constexpr int kSegment = 64;  // outputs of a row that are not divided between slices
constexpr int kBlocks = 1056; // that keep a large GPU busy: 8 for each of 132 multiprocessors
constexpr int kAdders = 16;   // threads that add the slices of one weight

struct Slices {
  int64_t items, length; // of work: of all, and of a slice
};

// weights[o, i, k] = the sum over the slices of what they have at k and (o, i): kAdders threads add
// each kAdders-th slice, and the first one what they have found, both in order.
template <class T>
__global__ void __launch_bounds__(kWarp* kAdders)
    add_slices_kernel(const __grid_constant__ ConvProblem p, int slices, PartialSums sums) {
  __shared__ float shared[kAdders][kWarp];
  const int64_t elements = sums.elements();
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarp;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp; first < elements; first += step) {
    const int64_t index = first + threadIdx.x;
    float sum = 0;
    if (index < elements) {
#pragma unroll 8
      for (int s = threadIdx.y; s < slices; s += kAdders)
        sum += sums.at(s, 0)[index];
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && index < elements) {
      for (int i = 1; i < kAdders; i++)
        sum += shared[i][threadIdx.x];
      const auto tap = static_cast<int>(index / sums.pairs);
      const auto pair = static_cast<int>(index - tap * sums.pairs), ic = static_cast<int>(p.ic);
      const int64_t o = pair / ic, i = pair % ic;
      const auto height = static_cast<int>(p.kernel[1]), width = static_cast<int>(p.kernel[2]);
      const int row = tap / width;
      const int64_t* stride = p.weights_stride;
      static_cast<T*>(p.out)
          [o * stride[0] + i * stride[1] + row / height * stride[2] + row % height * stride[3] +
           tap % width * stride[4]] = convert<T>(sum);
    }
    __syncthreads(); // what is shared may be overwritten
  }
}

// An output channel and an input channel of its group.
struct Pair {
  int64_t out, in;

  __device__ static Pair at(const ConvProblem& p, int index) {
    const int64_t out = index / p.ic;
    return {out, out / p.oc * p.ic + index - out * p.ic};
  }
};

int pairs_of(const ConvProblem& p) {
  return static_cast<int>(p.groups * p.oc * p.ic);
}

// A part of a row of the kernel: taps [w, w + kTaps) of row (d, h).
struct KernelPart {
  int d, h, w;

  __device__ static KernelPart at(const ConvProblem& p, int index, int taps) {
    const int parts = (static_cast<int>(p.kernel[2]) + taps - 1) / taps;
    const int row = index / parts, rows = static_cast<int>(p.kernel[1]);
    return {row / rows, row % rows, index % parts * taps};
  }

  __device__ int64_t first_tap(const ConvProblem& p) const {
    return (d * p.kernel[1] + h) * p.kernel[2] + w;
  }
};

// Where output x and the first of tap k meet the source, along one axis.
__device__ __forceinline__ int source(const ConvProblem& p, int axis, int x, int k) {
  return x * static_cast<int>(p.stride[axis]) + k * static_cast<int>(p.dilation[axis]) -
      static_cast<int>(p.pad[axis]);
}

__device__ __forceinline__ bool inside(const ConvProblem& p, int axis, int position) {
  return position >= 0 && position < p.src_size[axis];
}

// `parts`: of all rows of the kernel.
template <class T, int n, int kTaps, int kStride>
__global__ void __launch_bounds__(kThreads) depthwise_weights_nxc_kernel(
    const __grid_constant__ ConvProblem p,
    const __grid_constant__ Slices slices,
    int parts,
    PartialSums sums) {
  const auto pairs = static_cast<int>(sums.pairs);
  const int first_pair = (blockIdx.y * blockDim.x + threadIdx.x) * n;
  const int index = blockIdx.z * blockDim.y + threadIdx.y;
  if (first_pair >= pairs || index >= parts)
    return;
  const KernelPart part = KernelPart::at(p, index, kTaps);
  const Pair pair = Pair::at(p, first_pair); // a vector has one input channel in a group
  const auto width = static_cast<int>(p.dst_size[2]);
  const int segments = (width + kSegment - 1) / kSegment;
  const T* const src = static_cast<const T*>(p.src) + pair.in;
  const T* const dst = static_cast<const T*>(p.dst) + pair.out;
  float total[kTaps][n] = {};
  const int64_t begin = blockIdx.x * slices.length;
  const int64_t end = min(begin + slices.length, slices.items);
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item / segments, plane = row / p.dst_size[1];
    const auto h = static_cast<int>(row - plane * p.dst_size[1]);
    const int64_t image = plane / p.dst_size[0];
    const auto d = static_cast<int>(plane - image * p.dst_size[0]);
    const int id = source(p, 0, d, part.d), ih = source(p, 1, h, part.h);
    if (!inside(p, 0, id) || !inside(p, 1, ih))
      continue;
    const T* x = src + image * p.src_stride[0] + id * p.src_stride[2] + ih * p.src_stride[3];
    const T* y = dst + image * p.dst_stride[0] + d * p.dst_stride[2] + h * p.dst_stride[3];
    const int first = static_cast<int>(item - row * segments) * kSegment;
    const int last = min(first + kSegment, width);
    float segment[kTaps][n] = {};
    for (int w = first; w < last; w += kOutputs) {
      Vector<T, n> outputs[kOutputs] = {};
#pragma unroll
      for (int r = 0; r < kOutputs; r++)
        if (w + r < last)
          outputs[r] = load_vector<n>(y + (w + r) * p.dst_stride[4]);
      const auto add = [&](const Vector<T, n>& input, int r, int k) {
#pragma unroll
        for (int v = 0; v < n; v++)
          segment[k][v] += static_cast<float>(input.at[v]) * static_cast<float>(outputs[r].at[v]);
      };
      const auto load = [&](int position) {
        return load_vector<n>(x + position * p.src_stride[4]);
      };
      if constexpr (kStride == 0) { // any stride and dilation
#pragma unroll
        for (int k = 0; k < kTaps; k++) {
#pragma unroll
          for (int r = 0; r < kOutputs; r++) {
            const int position = source(p, 2, w + r, part.w + k);
            if (w + r < last && inside(p, 2, position))
              add(load(position), r, k);
          }
        }
      } else {
        // All loads are under way before the first one is used.
        constexpr int kInputs = (kOutputs - 1) * kStride + kTaps;
        const int origin = source(p, 2, w, part.w);
        const T* const at = x + origin * p.src_stride[4];
        Vector<T, n> inputs[kInputs] = {};
#pragma unroll
        for (int i = 0; i < kInputs; i++)
          if (inside(p, 2, origin + i))
            inputs[i] = load_vector<n>(at + i * p.src_stride[4]);
#pragma unroll
        for (int r = 0; r < kOutputs; r++) {
#pragma unroll
          for (int k = 0; k < kTaps; k++)
            if (w + r < last)
              add(inputs[r * kStride + k], r, k);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kTaps; k++) {
#pragma unroll
      for (int v = 0; v < n; v++)
        total[k][v] += segment[k][v];
    }
  }
  float* to = sums.at(blockIdx.x, part.first_tap(p)) + first_pair;
#pragma unroll
  for (int k = 0; k < kTaps; k++) {
    if (part.w + k >= p.kernel[2])
      break;
#pragma unroll
    for (int v = 0; v < n; v++)
      to[k * pairs + v] = total[k][v];
  }
}

// A warp's lanes have neighbouring outputs.
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads) depthwise_weights_ncx_kernel(
    const __grid_constant__ ConvProblem p,
    const __grid_constant__ Slices slices,
    int parts,
    PartialSums sums) {
  const auto pairs = static_cast<int>(sums.pairs);
  const int64_t slice = blockIdx.x / pairs;
  const auto own_pair = static_cast<int>(blockIdx.x - slice * pairs);
  const int index = blockIdx.y * blockDim.y + threadIdx.y;
  if (index >= parts)
    return;
  const KernelPart part = KernelPart::at(p, index, kTaps);
  const Pair pair = Pair::at(p, own_pair);
  const T* const src = static_cast<const T*>(p.src) + pair.in * p.src_stride[1];
  const T* const dst = static_cast<const T*>(p.dst) + pair.out * p.dst_stride[1];
  const int64_t pixels = p.dst_size[0] * p.dst_size[1] * p.dst_size[2]; // of an image
  const auto height = static_cast<unsigned>(p.dst_size[1]);
  const auto width = static_cast<unsigned>(p.dst_size[2]);
  float total[kTaps] = {};
  const int64_t begin = slice * slices.length;
  const int64_t end = min(begin + slices.length, slices.items);
  int64_t image = begin / pixels;
  int64_t pixel = begin - image * pixels + threadIdx.x; // of the image
  for (int64_t item = begin + threadIdx.x; item < end; item += kWarp, pixel += kWarp) {
    while (pixel >= pixels) {
      pixel -= pixels;
      image++;
    }
    const auto row = static_cast<unsigned>(pixel) / width;
    const auto w = static_cast<int>(static_cast<unsigned>(pixel) - row * width);
    const auto h = static_cast<int>(row % height), d = static_cast<int>(row / height);
    const int id = source(p, 0, d, part.d), ih = source(p, 1, h, part.h);
    if (!inside(p, 0, id) || !inside(p, 1, ih))
      continue;
    const T* x = src + image * p.src_stride[0] + id * p.src_stride[2] + ih * p.src_stride[3];
    const float y = static_cast<float>(
        dst[image * p.dst_stride[0] + d * p.dst_stride[2] + h * p.dst_stride[3] +
            w * p.dst_stride[4]]);
    float inputs[kTaps]; // all loads are under way before the first one is used
#pragma unroll
    for (int k = 0; k < kTaps; k++) {
      const int position = source(p, 2, w, part.w + k);
      inputs[k] = part.w + k < p.kernel[2] && inside(p, 2, position)
          ? static_cast<float>(x[position * p.src_stride[4]])
          : 0.f;
    }
#pragma unroll
    for (int k = 0; k < kTaps; k++)
      total[k] += inputs[k] * y;
  }
#pragma unroll
  for (int k = 0; k < kTaps; k++) {
#pragma unroll
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
      total[k] += __shfl_xor_sync(~0u, total[k], lanes);
    if (threadIdx.x == 0 && part.w + k < p.kernel[2])
      sums.at(slice, part.first_tap(p) + k)[own_pair] = total[k];
  }
}

int parts_of(const ConvProblem& p, int taps) {
  return static_cast<int>(p.kernel[0] * p.kernel[1] * ceil_div(p.kernel[2], taps));
}

// Runs a kernel that fills the sums of each slice, and adds these. `grid`: the blocks of one slice;
// there are slices for about kBlocks, none of less than `least` items.
template <class T>
void run(
    const ConvProblem& p,
    void (*kernel)(ConvProblem, Slices, int, PartialSums),
    dim3 grid,
    dim3 block,
    int parts,
    int64_t items,
    int64_t least) {
  const int64_t most_slices = ceil_div(kBlocks, int64_t(grid.x) * grid.y * grid.z);
  const Slices slices{items, std::max(least, ceil_div(items, most_slices))};
  const auto count = static_cast<int>(ceil_div(items, slices.length));
  PartialSums sums{product(p.kernel), pairs_of(p), nullptr};
  const Scratch scratch(sums.offset(count, 0) * sizeof(float));
  sums.data = static_cast<float*>(scratch.data());
  grid.x *= count;
  launch(kernel, grid, block, 0, p, slices, parts, sums);
  constexpr int64_t kMaxGrid = 1 << 16;
  const dim3 adders(static_cast<unsigned>(std::min(kMaxGrid, ceil_div(sums.elements(), kWarp))));
  launch(add_slices_kernel<T>, adders, dim3(kWarp, kAdders), 0, p, count, sums);
}

template <class T, int n, int kTaps, int kStride>
void run_nxc(const ConvProblem& p) {
  const int parts = parts_of(p, kTaps);
  const int64_t vectors = ceil_div(pairs_of(p), n);
  const int lanes = vectors > 16 ? 32 : vectors > 8 ? 16 : 8;
  const dim3 block(lanes, std::min(parts, kThreads / lanes));
  const dim3 grid(1, ceil_div(vectors, lanes), ceil_div(parts, block.y));
  const int64_t items = p.n * p.dst_size[0] * p.dst_size[1] * ceil_div(p.dst_size[2], kSegment);
  const auto kernel = depthwise_weights_nxc_kernel<T, n, kTaps, kStride>;
  run<T>(p, kernel, grid, block, parts, items, /*least=*/1);
}

template <class T, int kTaps>
void run_ncx(const ConvProblem& p) {
  const int parts = parts_of(p, kTaps);
  const dim3 block(kWarp, std::min(parts, kThreads / kWarp));
  const dim3 grid(pairs_of(p), ceil_div(parts, block.y));
  const int64_t items = p.n * product(p.dst_size);
  run<T>(p, depthwise_weights_ncx_kernel<T, kTaps>, grid, block, parts, items, /*least=*/512);
}

// With vectors of channels where both images are read in them.
template <class T>
void run_nxc(const ConvProblem& p) {
  const bool has_vectors = p.ic == 1 && p.oc == 1 && p.groups % kVector == 0 &&
      can_move_runs<T>(p.src, p.src_stride, kVector, /*axis=*/1) &&
      can_move_runs<T>(p.dst, p.dst_stride, kVector, /*axis=*/1);
  const auto taps = static_cast<int>(p.kernel[2]);
  const int64_t stride = p.dilation[2] == 1 ? p.stride[2] : 0;
  if (!has_vectors)
    return taps == 3 && stride == 1 ? run_nxc<T, 1, 3, 1>(p) : run_nxc<T, 1, 4, 0>(p);
  if (stride == 1)
    return with_constant<4, 3, 5, 7>(taps, [&](auto kTaps) { run_nxc<T, kVector, kTaps, 1>(p); });
  if (stride == 2)
    return taps == 3 ? run_nxc<T, kVector, 3, 2>(p) : run_nxc<T, kVector, 4, 2>(p);
  run_nxc<T, kVector, 4, 0>(p);
}

template <class T>
void run_ncx(const ConvProblem& p) {
  with_constant<4, 3, 5, 7>(
      static_cast<int>(p.kernel[2]), [&](auto kTaps) { run_ncx<T, kTaps>(p); });
}

} // namespace

bool supports_depthwise_weights(const ConvProblem& p) {
  constexpr int64_t kMaxGridYZ = 65535;
  return product(p.kernel) <= kMaxGridYZ && product(p.dst_size) >> 31 == 0 &&
      pairs_of(p) <= kMaxGridYZ * 8;
}

void depthwise_weights(const ConvProblem& p) {
  const bool is_nxc = p.groups * p.oc > 1 && p.src_stride[1] == 1 && p.dst_stride[1] == 1;
  dispatch(DepthwiseTypes{}, p.dtype, [&]<class T>(std::type_identity<T>) {
    is_nxc ? run_nxc<T>(p) : run_ncx<T>(p);
  });
}

} // namespace torch_dnnl::cuda
