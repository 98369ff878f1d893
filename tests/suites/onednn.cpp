// oneDNN's resampling, reorder and convolution as C functions, for onednn.py: each computes one
// primitive on the CPU, of dense tensors in any of oneDNN's formats, and returns what went wrong.
//
// Memory is oneDNN's own and is filled and read through map_data, which every runtime of it has.

#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_map>

namespace {

using namespace dnnl;

struct Tensor {
  const char* type; // "f32", as oneDNN prints it
  const char* tag;  // "abcd"; nullptr: a vector
  const int64_t* sizes;
  int64_t rank;
  void* data; // nullptr: no such tensor
};

struct Spatial {
  const int64_t* strides;
  const int64_t* dilations; // 0 is dense
  const int64_t* pads_begin;
  const int64_t* pads_end;
  int64_t rank;
};

// Scales and zero points of one tensor.
struct Quantization {
  const float* scales; // nullptr: none
  int64_t scale_count;
  int64_t scale_mask;
  int64_t zero_point;
};

thread_local std::string message;

memory::data_type type_named(const std::string& name) {
  for (int i = 1; i < 32; ++i)
    if (name == dnnl_dt2str(static_cast<dnnl_data_type_t>(i)))
      return static_cast<memory::data_type>(i);
  throw std::invalid_argument("oneDNN has no type " + name);
}

memory::format_tag tag_named(const std::string& name) {
  for (int i = 1; i < dnnl_format_tag_last; ++i)
    if (name == dnnl_fmt_tag2str(static_cast<dnnl_format_tag_t>(i)))
      return static_cast<memory::format_tag>(i);
  throw std::invalid_argument("oneDNN has no tag " + name);
}

memory::dims dims(const int64_t* values, int64_t count) {
  return memory::dims(values, values + count);
}

memory::desc describe(const Tensor& tensor) {
  const auto tag = tensor.tag ? tag_named(tensor.tag) : memory::format_tag::a;
  return memory::desc(dims(tensor.sizes, tensor.rank), type_named(tensor.type), tag);
}

class Run {
 public:
  Run() : engine_(engine::kind::cpu, 0), stream_(engine_) {}

  engine& get_engine() {
    return engine_;
  }

  void pass(int argument, const memory::desc& desc, const void* data) {
    memory m(desc, engine_);
    void* mapped = m.map_data();
    std::memcpy(mapped, data, desc.get_size());
    m.unmap_data(mapped);
    arguments_[argument] = m;
  }

  void pass(int argument, const Tensor& tensor) {
    if (tensor.data)
      pass(argument, describe(tensor), tensor.data);
  }

  template <class T>
  void pass_vector(int argument, memory::data_type type, const T* data, int64_t count) {
    pass(argument, memory::desc({count}, type, memory::format_tag::a), data);
  }

  void pass(int argument, const Quantization& quantization) {
    if (quantization.scales) {
      pass_vector(
          DNNL_ARG_ATTR_SCALES | argument,
          memory::data_type::f32,
          quantization.scales,
          quantization.scale_count);
    }
    if (quantization.zero_point) {
      const int32_t zero_point = static_cast<int32_t>(quantization.zero_point);
      pass_vector(DNNL_ARG_ATTR_ZERO_POINTS | argument, memory::data_type::s32, &zero_point, 1);
    }
  }

  // The result's memory is passed too, as sums read it.
  void execute(const primitive& what, int argument, const Tensor& result) {
    what.execute(stream_, arguments_);
    stream_.wait();
    memory& m = arguments_.at(argument);
    void* mapped = m.map_data();
    std::memcpy(result.data, mapped, m.get_desc().get_size());
    m.unmap_data(mapped);
  }

 private:
  engine engine_;
  stream stream_;
  std::unordered_map<int, memory> arguments_;
};

void set(primitive_attr& attr, int argument, const Quantization& quantization) {
  if (quantization.scales)
    attr.set_scales_mask(argument, static_cast<int>(quantization.scale_mask));
  if (quantization.zero_point)
    attr.set_zero_points_mask(argument, 0);
}

const char* reported(const std::function<void()>& body) {
  message.clear();
  try {
    body();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

} // namespace

extern "C" {

const char* onednn_version() {
  const auto* v = dnnl_version();
  message =
      std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  return message.c_str();
}

// Bytes of a tensor in its format, padding included; 0 if there is no such format.
int64_t onednn_bytes(const Tensor* tensor) {
  int64_t bytes = 0;
  reported([&] { bytes = static_cast<int64_t>(describe(*tensor).get_size()); });
  return bytes;
}

const char*
onednn_resampling(const Tensor* src, const Tensor* dst, const char* mode, bool backward) {
  return reported([&] {
    Run run;
    const auto algorithm = mode == std::string("linear") ? algorithm::resampling_linear
                                                         : algorithm::resampling_nearest;
    const resampling_forward::primitive_desc forward(
        run.get_engine(), prop_kind::forward_training, algorithm, describe(*src), describe(*dst));
    if (!backward) {
      run.pass(DNNL_ARG_SRC, *src);
      run.pass(DNNL_ARG_DST, *dst);
      run.execute(resampling_forward(forward), DNNL_ARG_DST, *dst);
      return;
    }
    const resampling_backward::primitive_desc desc(
        run.get_engine(), algorithm, describe(*src), describe(*dst), forward);
    run.pass(DNNL_ARG_DIFF_SRC, *src);
    run.pass(DNNL_ARG_DIFF_DST, *dst);
    run.execute(resampling_backward(desc), DNNL_ARG_DIFF_SRC, *src);
  });
}

// dst = src, with scales, zero points and `beta` times what dst is before.
const char* onednn_reorder(
    const Tensor* src,
    const Tensor* dst,
    const Quantization* of_src,
    const Quantization* of_dst,
    float beta) {
  return reported([&] {
    Run run;
    primitive_attr attr;
    set(attr, DNNL_ARG_SRC, *of_src);
    set(attr, DNNL_ARG_DST, *of_dst);
    if (beta != 0) {
      post_ops after;
      after.append_sum(beta);
      attr.set_post_ops(after);
    }
    const reorder::primitive_desc desc(
        run.get_engine(), describe(*src), run.get_engine(), describe(*dst), attr);
    run.pass(DNNL_ARG_SRC, *src);
    run.pass(DNNL_ARG_DST, *dst);
    run.pass(DNNL_ARG_SRC, *of_src);
    run.pass(DNNL_ARG_DST, *of_dst);
    run.execute(reorder(desc), DNNL_ARG_DST, *dst);
  });
}

// `pass`: "forward", "backward_data" or "backward_weights". The result is dst, src or weights, of
// which the caller gives the memory.
const char* onednn_convolution(
    const char* pass,
    const Tensor* src,
    const Tensor* weights,
    const Tensor* bias,
    const Tensor* dst,
    const Spatial* spatial,
    const Quantization* of_src,
    const Quantization* of_weights,
    const Quantization* of_dst) {
  return reported([&] {
    Run run;
    const std::string name = pass;
    const auto direct = algorithm::convolution_direct;
    const auto s = describe(*src), w = describe(*weights), d = describe(*dst);
    const auto b = bias->data ? describe(*bias) : memory::desc();
    const auto strides = dims(spatial->strides, spatial->rank);
    const auto dilations = dims(spatial->dilations, spatial->rank);
    const auto begin = dims(spatial->pads_begin, spatial->rank);
    const auto end = dims(spatial->pads_end, spatial->rank);
    primitive_attr attr;
    set(attr, DNNL_ARG_SRC, *of_src);
    set(attr, DNNL_ARG_WEIGHTS, *of_weights);
    set(attr, DNNL_ARG_DST, *of_dst);
    const auto kind =
        name == "forward" ? prop_kind::forward_inference : prop_kind::forward_training;
    const convolution_forward::primitive_desc forward(
        run.get_engine(), kind, direct, s, w, b, d, strides, dilations, begin, end, attr);
    if (name == "forward") {
      run.pass(DNNL_ARG_SRC, *src);
      run.pass(DNNL_ARG_WEIGHTS, *weights);
      run.pass(DNNL_ARG_BIAS, *bias);
      run.pass(DNNL_ARG_DST, *dst);
      run.pass(DNNL_ARG_SRC, *of_src);
      run.pass(DNNL_ARG_WEIGHTS, *of_weights);
      run.pass(DNNL_ARG_DST, *of_dst);
      run.execute(convolution_forward(forward), DNNL_ARG_DST, *dst);
    } else if (name == "backward_data") {
      const convolution_backward_data::primitive_desc desc(
          run.get_engine(), direct, s, w, d, strides, dilations, begin, end, forward);
      run.pass(DNNL_ARG_DIFF_SRC, *src);
      run.pass(DNNL_ARG_WEIGHTS, *weights);
      run.pass(DNNL_ARG_DIFF_DST, *dst);
      run.execute(convolution_backward_data(desc), DNNL_ARG_DIFF_SRC, *src);
    } else {
      const convolution_backward_weights::primitive_desc desc(
          run.get_engine(), direct, s, w, b, d, strides, dilations, begin, end, forward);
      run.pass(DNNL_ARG_SRC, *src);
      run.pass(DNNL_ARG_DIFF_WEIGHTS, *weights);
      run.pass(DNNL_ARG_DIFF_DST, *dst);
      run.execute(convolution_backward_weights(desc), DNNL_ARG_DIFF_WEIGHTS, *weights);
    }
  });
}

} // extern "C"
