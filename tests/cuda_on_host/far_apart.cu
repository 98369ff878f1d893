// Whole kernels over tensors whose images, channels, planes and rows are more than 2^31 elements
// apart, those that they write too, as no operator allocates them: the same bits as over tensors
// without gaps. In the gaps is memory that nobody touches, which takes none. A program that ends
// with 0 when all are the same.
#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "conv/cuda/kernels.h"
#include "core/kernel_list.h"
#include "reorder/cuda/kernels.h"
#include "resample/cuda/kernels.h"

using namespace torch_dnnl;

namespace {

int failures = 0;
bool is_far = false; // how tensors are laid out

std::mt19937 random_bits(0);

// Reserved, of zeros: pages exist once they are touched. There is as much before the first element
// and after the last one as offsets that are cut to 32 bits may reach.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes + 2 * kAround) {
    memory_ = mmap(
        nullptr,
        bytes_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        /*fd=*/-1,
        /*offset=*/0);
    if (memory_ == MAP_FAILED) {
      std::perror("mmap");
      std::exit(2);
    }
  }
  ~Memory() {
    munmap(memory_, bytes_);
  }
  Memory(const Memory&) = delete;

  char* data() const {
    return static_cast<char*>(memory_) + kAround;
  }

 private:
  static constexpr int64_t kAround = int64_t(16) << 30;
  int64_t bytes_;
  void* memory_;
};

// float32 elements. `order`: the axes from the outermost one in memory to the innermost; the last
// `near` of them have no gaps.
class Tensor {
 public:
  Tensor(const std::vector<int64_t>& size, const std::vector<int>& order, size_t near)
      : size_(size), stride_(size.size()) {
    int64_t step = 1;
    for (size_t i = order.size(); i-- > 0;) {
      if (order.size() - i > near)
        step = (step + 15) / 16 * 16 + (is_far ? (int64_t(1) << 31) + 16 : 0);
      stride_[order[i]] = step;
      step *= size[order[i]];
    }
    memory_ = std::make_unique<Memory>(step * sizeof(float));
  }

  Tensor& fill() {
    std::uniform_real_distribution<float> size(0.5, 1.5);
    for_each([&](float& element) {
      element = random_bits() % 2 == 0 ? size(random_bits) : -size(random_bits);
    });
    return *this;
  }

  float* data() const {
    return reinterpret_cast<float*>(memory_->data());
  }
  const std::vector<int64_t>& size() const {
    return size_;
  }
  const std::vector<int64_t>& stride() const {
    return stride_;
  }
  std::vector<float> elements() const {
    std::vector<float> all;
    for_each([&](float element) { all.push_back(element); });
    return all;
  }

 private:
  template <class F>
  void for_each(F f) const {
    const int64_t count =
        std::accumulate(size_.begin(), size_.end(), int64_t(1), std::multiplies<>());
    for (int64_t i = 0; i < count; i++) {
      int64_t rest = i, offset = 0;
      for (size_t a = size_.size(); a-- > 0; rest /= size_[a])
        offset += rest % size_[a] * stride_[a];
      f(data()[offset]);
    }
  }

  std::vector<int64_t> size_, stride_;
  std::unique_ptr<Memory> memory_;
};

// `run` makes tensors, fills them, computes and returns the elements of the results.
template <class F>
void same_bits(const char* what, F run) {
  std::vector<float> results[2];
  for (const bool far : {false, true}) {
    is_far = far;
    random_bits.seed(0);
    results[far] = run();
  }
  const auto& [expected, actual] = results;
  int wrong = expected.empty() || expected.size() != actual.size();
  for (size_t i = 0; i < std::min(expected.size(), actual.size()); i++)
    wrong += std::memcmp(&expected[i], &actual[i], sizeof(float)) != 0 || expected[i] == 0;
  std::printf("%s: %d of %zu wrong\n", what, wrong, expected.size());
  failures += wrong != 0;
}

void append(std::vector<float>& all, const Tensor& tensor) {
  const std::vector<float> more = tensor.elements();
  all.insert(all.end(), more.begin(), more.end());
}

struct ConvShape {
  int64_t groups, ic, oc, step; // stride along every axis
};

// `near`: innermost axes of the images without gaps.
void convolution(
    const char* what,
    const Kernel<ConvProblem>& kernel,
    const ConvShape& shape,
    const std::vector<int>& image_order,
    size_t near,
    const std::vector<int>& weights_order) {
  for (const ConvPass pass :
       {ConvPass::forward, ConvPass::backward_data, ConvPass::backward_weights}) {
    same_bits(what, [&] {
      ConvProblem p{};
      p.pass = pass;
      p.n = 2, p.groups = shape.groups, p.ic = shape.ic, p.oc = shape.oc;
      p.dtype = c10::kFloat;
      std::vector<int64_t> src_size{p.n, p.groups * p.ic}, dst_size{p.n, p.groups * p.oc};
      std::vector<int64_t> weights_size{p.groups * p.oc, p.ic};
      for (int a = 0; a < 3; a++) {
        p.src_size[a] = 3 + 2 * a, p.kernel[a] = a == 0 ? 2 : 3;
        p.stride[a] = shape.step, p.dilation[a] = p.pad[a] = 1;
        p.dst_size[a] = (p.src_size[a] + 2 - p.kernel[a]) / p.stride[a] + 1;
        src_size.push_back(p.src_size[a]);
        dst_size.push_back(p.dst_size[a]);
        weights_size.push_back(p.kernel[a]);
      }
      Tensor src(src_size, image_order, near), dst(dst_size, image_order, near);
      Tensor residual(dst_size, image_order, near), preactivation(dst_size, image_order, near);
      Tensor weights(weights_size, weights_order, 1), bias({p.groups * p.oc}, {0}, 0);
      std::copy_n(src.stride().begin(), 5, p.src_stride);
      std::copy_n(dst.stride().begin(), 5, p.dst_stride);
      std::copy_n(weights.stride().begin(), 5, p.weights_stride);
      p.weights_group = p.oc * p.weights_stride[0];
      std::vector<float> results;
      if (pass == ConvPass::forward) {
        p.bias = bias.fill().data(), p.bias_stride = bias.stride()[0];
        p.residual = residual.fill().data(), p.preactivation = preactivation.data();
        std::copy_n(residual.stride().begin(), 5, p.residual_stride);
        p.activation = Activation::tanh;
      }
      if (pass != ConvPass::forward)
        p.dst = dst.fill().data();
      if (pass != ConvPass::backward_data)
        p.src = src.fill().data();
      if (pass != ConvPass::backward_weights)
        p.weights = weights.fill().data();
      Tensor& out = pass == ConvPass::forward ? dst
          : pass == ConvPass::backward_data   ? src
                                              : weights;
      p.out = out.data();
      if (!kernel.supports(p))
        return results;
      kernel.run(p);
      append(results, out);
      if (pass == ConvPass::forward)
        append(results, preactivation);
      return results;
    });
  }
}

void convolutions() {
  constexpr Kernel<ConvProblem> depthwise{
      "depthwise", cuda::supports_depthwise, always, cuda::run_depthwise};
  constexpr Kernel<ConvProblem> dense{"dense", cuda::supports_dense, always, cuda::run_dense};
  const std::vector<int> nxc{0, 2, 3, 4, 1}, ncx{0, 1, 2, 3, 4};
  const std::vector<int> taps_last{0, 1, 2, 3, 4}, channels_last{0, 2, 3, 4, 1};
  for (const int64_t step : {1, 2}) {
    for (const ConvShape& few : {ConvShape{8, 1, 1, step}, {5, 1, 1, step}, {3, 4, 4, step}}) {
      convolution("depthwise, channels innermost", depthwise, few, nxc, 2, taps_last);
      convolution("depthwise, rows innermost", depthwise, few, ncx, 1, taps_last);
    }
    const ConvShape many{2, 16, 20, step};
    convolution("dense, channels innermost", dense, many, nxc, 1, channels_last);
    convolution("dense, rows innermost", dense, many, ncx, 1, taps_last);
  }
}

// Elements of [2, 3, 17, 37], those of src in the given order in memory, with operands, one of them
// equal along rows, or only moved.
void reorder(
    const char* what,
    const std::vector<int>& src_order,
    bool operands,
    void (*run)(const ReorderProblem&, const boxes::Box&)) {
  same_bits(what, [&] {
    const std::vector<int64_t> size{2, 3, 17, 37};
    const std::vector<int> order{0, 1, 2, 3};
    Tensor src(size, src_order, 1), dst(size, order, 1), accumulate(size, order, 1);
    Tensor scale({2, 3, 17, 1}, order, 1), dst_scale(size, {0, 1, 3, 2}, 1);
    ReorderProblem p{};
    p.src_dtype = p.dst_dtype = c10::kFloat;
    p.compute_dtype = operands ? c10::kFloat : c10::kLong;
    p.src = src.fill().data(), p.dst = dst.data();
    const Tensor* arrays[boxes::kArrays] = {};
    arrays[boxes::kSrc] = &src, arrays[boxes::kDst] = &dst;
    if (operands) {
      p.operand[boxes::kAccumulate] = {true, c10::kFloat, accumulate.fill().data()};
      p.operand[boxes::kScale] = {true, c10::kFloat, scale.fill().data()};
      p.operand[boxes::kDstScale] = {true, c10::kFloat, dst_scale.fill().data()};
      p.beta = 0.5;
      arrays[boxes::kAccumulate] = &accumulate;
      arrays[boxes::kScale] = &scale, arrays[boxes::kDstScale] = &dst_scale;
    }
    boxes::Box box;
    for (size_t a = 0; a < size.size(); a++) {
      box.axes.push_back({size[a], {}});
      for (int array = 0; array < boxes::kArrays; array++)
        if (arrays[array] != nullptr && arrays[array]->size()[a] > 1)
          box.axes.back().stride[array] = arrays[array]->stride()[a];
    }
    run(p, box);
    return dst.elements();
  });
}

// Both operators of fake quantization, whose problems have digits in place of a box.
std::vector<float> fake_reorder() {
  const std::vector<int64_t> size{2, 3, 17, 40};
  const int64_t elements = 2 * 3 * 17 * 40;
  const std::vector<int> order{0, 1, 2, 3};
  Tensor src(size, order, 1), values(size, order, 1), grad(size, order, 1);
  std::vector<uint8_t> mask(elements / 8 + 1, 0xff);
  FakeReorderProblem p{};
  ReorderProblem& r = p.reorder;
  r.dims = r.src_layout.digits = r.dst_layout.digits = 4;
  for (int a = 0; a < 4; a++) {
    r.size[a] = size[a];
    r.src_layout.digit[a] = r.dst_layout.digit[a] = {a, size[a], 1, src.stride()[a]};
  }
  r.src_dtype = r.dst_dtype = r.compute_dtype = c10::kFloat;
  r.src = src.fill().data(), r.dst = values.data();
  r.operand[boxes::kDstScale] = {
      true, c10::kFloat, nullptr, /*number=*/0.0125}; // nothing saturates
  p.dtype = c10::kChar;
  p.rows = 1, p.row_bytes = elements / 8 + 1, p.row_elements = elements;
  p.mask = mask.data();
  reorder_cuda::fake_quantize(p);
  r.dst = grad.data();
  p.saved_mask = mask.data();
  reorder_cuda::mask_gradient(p);
  std::vector<float> results = values.elements();
  append(results, grad);
  return results;
}

void run_tiles(const ReorderProblem& p, const boxes::Box& box) {
  reorder_cuda::run_tiles(p, boxes::BoxGroup(box));
}

void reorders() {
  same_bits("fake_reorder", fake_reorder);
  for (const bool operands : {false, true}) {
    reorder("reorder, packs", {1, 2, 0, 3}, operands, reorder_cuda::run_straight);
    for (const std::vector<int>& order : {std::vector{0, 1, 3, 2}, {3, 0, 2, 1}, {2, 3, 1, 0}})
      reorder("reorder, tiles", order, operands, run_tiles);
  }
}

// [n, c, 1, h, w] to other h and w.
template <class F>
void resample(
    const char* what,
    const std::vector<int64_t>& from,
    const std::vector<int64_t>& to,
    const std::vector<int>& order,
    size_t near,
    Filter filter,
    F run) {
  same_bits(what, [&] {
    ResampleProblem p{};
    Tensor src(from, order, near), dst(to, order, near);
    p.n = from[0], p.c = from[1];
    p.src_dtype = p.dst_dtype = c10::kFloat;
    p.src = src.fill().data(), p.dst = dst.data();
    p.channels_innermost = order.back() == 1;
    std::copy_n(src.stride().begin(), 5, p.src_stride);
    std::copy_n(dst.stride().begin(), 5, p.dst_stride);
    for (int a = 0; a < 3; a++) {
      p.src_size[a] = from[2 + a], p.dst_size[a] = to[2 + a];
      p.axes[a].in = from[2 + a], p.axes[a].out = to[2 + a];
      p.axes[a].filter = filter;
    }
    const Tables<float> tables = cached_tables<float>(p.axes, false);
    run(cuda::ResamplePlan<float>{p, tables, cuda::row_images(p, tables)});
    return dst.elements();
  });
}

void resamples() {
  const std::vector<int> nxc{0, 2, 3, 4, 1}, ncx{0, 1, 2, 3, 4};
  const std::vector<int64_t> small{2, 8, 2, 5, 64}, large{2, 8, 2, 11, 128};
  for (const bool channels_innermost : {false, true}) {
    const std::vector<int>& order = channels_innermost ? nxc : ncx;
    const size_t near = channels_innermost ? 2 : 1;
    resample("resample, copy", small, large, order, near, Filter::nearest, cuda::copy_elements);
    resample(
        "resample, window", small, large, order, near, Filter::linear, cuda::slide_window<float>);
    resample(
        "resample, pixels", large, small, order, near, Filter::linear, cuda::sum_pixels<float>);
  }
  resample("resample, windows", large, small, ncx, 1, Filter::linear, cuda::sum_windows<float>);
  resample("resample, rows", large, small, ncx, 1, Filter::linear, cuda::sum_rows<float>);
}

} // namespace

int main() {
  convolutions();
  reorders();
  resamples();
  return failures != 0;
}
