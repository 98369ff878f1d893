#include "conv/cpu/quantized/epilogue.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "conv/cpu/quantized/bytes.h"
#include "conv/cpu/quantized/tile_steps.h"
#include "conv/quantized/reference.h"
#include "core/cpu/transpose.h"

namespace torch_dnnl {
namespace {

// Where a run begins in an image of these strides.
int64_t offset_of(const QuantizedRun& run, const int64_t* stride) {
  return run.n * stride[0] + run.channel * stride[1] + run.d * stride[2] + run.h * stride[3] +
      run.w * stride[4];
}

template <class Dst>
void convert_all(const float* from, int64_t n, const QuantizedSteps& /*steps*/, Dst* to) {
  for (int64_t i = 0; i < n; i += kLanes<float>)
    store_up_to<float>(to + i, load_up_to<float>(from + i, n - i), n - i);
}

template <>
void convert_all(const float* from, int64_t n, const QuantizedSteps& steps, int32_t* to) {
  for (int64_t i = 0; i < n; i++)
    to[i] = steps.rounded<int32_t>(from[i]);
}

template <class Dst>
void convert_to_bytes(const float* from, int64_t n, const QuantizedSteps& steps, Dst* to) {
  with_rounding<Dst, /*is_bounded=*/false>(steps, [&](const auto& round) {
    // Of a workspace's values, whole vectors are read.
    store_bytes_of(n, [&](int64_t i) { return load_vector(from + i); }, round, to);
  });
}

template <>
void convert_all(const float* from, int64_t n, const QuantizedSteps& steps, int8_t* to) {
  convert_to_bytes(from, n, steps, to);
}
template <>
void convert_all(const float* from, int64_t n, const QuantizedSteps& steps, uint8_t* to) {
  convert_to_bytes(from, n, steps, to);
}

// Between [pixel][channel] without gaps and an image, either of which is written.
template <bool kToImage, class T, class Image>
void exchange(const QuantizedRun& run, const int64_t* stride, T* dense, Image* image) {
  const int64_t channels = run.channels, pixels = run.pixels;
  const auto move = [](auto& own, auto& other) {
    if constexpr (kToImage)
      other = own;
    else
      own = other;
  };
  const auto copy = [&](T* own, Image* other, int64_t n) {
    if constexpr (kToImage)
      std::memcpy(other, own, n * sizeof(T));
    else
      std::memcpy(own, other, n * sizeof(T));
  };
  if (stride[1] == 1) {
    if (stride[4] == channels)
      return copy(dense, image, pixels * channels);
    for (int64_t x = 0; x < pixels; x++)
      copy(dense + x * channels, image + x * stride[4], channels);
    return;
  }
  if (stride[4] == 1 && channels > 1) {
    if constexpr (kToImage)
      transpose_numbers(dense, channels, pixels, image, stride[1], channels);
    else
      transpose_numbers(image, stride[1], channels, dense, channels, pixels);
    return;
  }
  for (int64_t x = 0; x < pixels; x++)
    for (int64_t c = 0; c < channels; c++)
      move(dense[x * channels + c], image[c * stride[1] + x * stride[4]]);
}

// f<Dst, Residual>() where both are of bytes, or Residual is void for there is none. Whether it was
// called.
template <class F>
bool with_byte_types(const QuantizedProblem& p, const F& f) {
  const auto with_dst = [&]<class Dst>(std::type_identity<Dst>) {
    if (p.conv.residual == nullptr)
      f.template operator()<Dst, void>();
    else if (p.residual_dtype == c10::kByte)
      f.template operator()<Dst, uint8_t>();
    else if (p.residual_dtype == c10::kChar)
      f.template operator()<Dst, int8_t>();
    else
      return false;
    return true;
  };
  if (p.dst_dtype == c10::kByte)
    return with_dst(std::type_identity<uint8_t>());
  return p.dst_dtype == c10::kChar && with_dst(std::type_identity<int8_t>());
}

typedef float HalfVector __attribute__((vector_size(sizeof(Vector<float>) / 2)));

// Values are [pixel][channel]. `slopes`: of prelu, for the channels. Whole vectors are activated.
template <Activation activation>
void activate_all(
    float* values,
    int64_t pixels,
    int64_t channels,
    const ActivationParameters& parameters,
    const float* slopes) {
  const int64_t n = pixels * channels;
  if constexpr (activation == Activation::prelu) {
    for (int64_t x = 0; x < pixels; x++, values += channels)
      for (int64_t c = 0; c < channels; c++)
        values[c] = activate_portably<activation>(values[c], parameters, slopes[c]);
  } else if constexpr (is_of_float32(activation)) {
    for (int64_t i = 0; i < n; i++)
      values[i] = activate_portably<activation>(values[i], parameters, 0);
  } else {
    for (int64_t i = 0; i < n; i += kLanes<double>) {
      HalfVector some;
      std::memcpy(&some, values + i, sizeof(some));
      const auto wide = __builtin_convertvector(some, Vector<double>);
      some = __builtin_convertvector(activate_in_float64<activation>(wide, parameters), HalfVector);
      std::memcpy(values + i, &some, sizeof(some));
    }
  }
}

} // namespace

QuantizedEpilogue::QuantizedEpilogue(const QuantizedProblem& p) : p_(p) {
  std::fill_n(scales_.data() + channels_, kRest, 0.0f);
  std::fill_n(biases_.data() + channels_, kRest, 0.0f);
  float scale = 0, bias = 0; // the largest
  for (int64_t c = 0; c < channels_; c++) {
    scales_.data()[c] = steps_.scale(p, c);
    biases_.data()[c] = steps_.bias(p, c);
    scale = std::max(scale, std::fabs(scales_.data()[c]));
    bias = std::max(bias, std::fabs(biases_.data()[c]));
    is_bounded_ &= std::isfinite(scales_.data()[c]) && std::isfinite(biases_.data()[c]);
  }
  const double of_byte = 255 + std::fabs(steps_.residual_zero_point);
  const double residual =
      p.conv.residual == nullptr ? 0 : of_byte * std::fabs(steps_.residual_scale);
  const double most = 0x1p31 * scale + bias + residual;
  is_bounded_ &=
      most < 0x1p29 * std::fabs(steps_.dst_scale) && std::fabs(steps_.dst_zero_point) < 0x1p29f;
}

template <class T>
void QuantizedEpilogue::add_residual(const QuantizedRun& run, const Workspace& own) const {
  const int64_t n = run.pixels * run.channels;
  const int64_t* const stride = p_.conv.residual_stride;
  T* const dense = reinterpret_cast<T*>(own.bytes.data());
  const T* const image = static_cast<const T*>(p_.conv.residual) + offset_of(run, stride);
  exchange</*kToImage=*/false>(run, stride, dense, image);
  float* const values = own.values.data();
  for (int64_t i = 0; i < n; i++)
    values[i] = steps_.with_residual(values[i], static_cast<float>(dense[i]));
}

template <class Dst>
void QuantizedEpilogue::store_as(const QuantizedRun& run, const Workspace& own) const {
  const int64_t* const stride = p_.conv.dst_stride;
  Dst* const image = static_cast<Dst*>(p_.conv.out) + offset_of(run, stride);
  const bool is_in_order = stride[1] == 1 && stride[4] == run.channels;
  Dst* const dense = is_in_order ? image : reinterpret_cast<Dst*>(own.bytes.data());
  convert_all(own.values.data(), run.pixels * run.channels, steps_, dense);
  if (!is_in_order)
    exchange</*kToImage=*/true>(run, stride, dense, image);
}

// Bytes of sums and, unless Residual is void, of bytes that are added, in one pass.
template <class Dst, class Residual, bool is_bounded>
void QuantizedEpilogue::store_bytes(const QuantizedRun& run, const Workspace& own) const {
  constexpr bool has_residual = !std::is_void_v<Residual>;
  using Bytes = std::conditional_t<has_residual, Residual, Dst>;
  const Bytes* residual = nullptr;
  int64_t residual_step = 0;
  if constexpr (has_residual) {
    const int64_t* const stride = p_.conv.residual_stride;
    residual = static_cast<const Bytes*>(p_.conv.residual) + offset_of(run, stride);
    residual_step = stride[4];
    if (stride[1] != 1) {
      auto* const dense = reinterpret_cast<Bytes*>(own.values.data());
      exchange</*kToImage=*/false>(run, stride, dense, residual);
      residual = dense;
      residual_step = run.channels;
    }
  }
  const int64_t* const stride = p_.conv.dst_stride;
  Dst* const image = static_cast<Dst*>(p_.conv.out) + offset_of(run, stride);
  const bool is_in_place = stride[1] == 1;
  Dst* const first = is_in_place ? image : reinterpret_cast<Dst*>(own.bytes.data());
  const int64_t step = is_in_place ? stride[4] : run.channels;
  const Channels channels = channels_of(run);
  constexpr float none = -std::numeric_limits<float>::infinity();
  const Vector<float> floor = broadcast(p_.conv.activation == Activation::relu ? 0 : none);
  const Vector<float> residual_scale = broadcast(steps_.residual_scale);
  const Vector<float> residual_zero_point = broadcast(steps_.residual_zero_point);
  with_rounding<Dst, is_bounded>(steps_, [&](const auto& round) {
    for (int64_t x = 0; x < run.pixels; x++) {
      const int32_t* const sums = run.sums + x * run.pitch;
      const auto value_at = [&](int64_t c) {
        // Modulo 2^32.
        const auto products = Vector<uint32_t>(load_vector(sums + c));
        const auto compensation = Vector<uint32_t>(load_vector(channels.compensation + c));
        Vector<float> v = __builtin_convertvector(Ints(products - compensation), Vector<float>);
        v = v * load_vector(channels.scale + c) + load_vector(channels.bias + c);
        if constexpr (has_residual) {
          // The baseline library's Lanes are no Vector.
          float bytes[kLanes<float>];
          load_up_to<float>(residual + x * residual_step + c, run.channels - c).store(bytes);
          v = v + residual_scale * (load_vector(bytes) - residual_zero_point);
        }
        return at_least(v, floor);
      };
      store_bytes_of(run.channels, value_at, round, first + x * step);
    }
  });
  if (!is_in_place)
    exchange</*kToImage=*/true>(run, stride, first, image);
}

bool QuantizedEpilogue::has_simple_activation() const {
  return p_.conv.activation == Activation::none || p_.conv.activation == Activation::relu;
}

// Whether store_bytes does it; then it has done it.
bool QuantizedEpilogue::try_store_bytes(const QuantizedRun& run, const Workspace& own) const {
  return has_simple_activation() && with_byte_types(p_, [&]<class Dst, class Residual>() {
           if (is_bounded_)
             store_bytes<Dst, Residual, true>(run, own);
           else
             store_bytes<Dst, Residual, false>(run, own);
         });
}

#if defined(CPU_CAPABILITY_AVX512)
// Where the pixels of a run are: in the workspace, if an image is not channels-last.
template <class Dst, class Residual>
TilePlaces<Dst, Residual>
QuantizedEpilogue::tile_places(const QuantizedRun& run, const Workspace& own) const {
  TilePlaces<Dst, Residual> places{run.channels, run.pixels};
  if constexpr (!std::is_void_v<Residual>) {
    const int64_t* const stride = p_.conv.residual_stride;
    places.residual = static_cast<const Residual*>(p_.conv.residual) + offset_of(run, stride);
    places.residual_step = stride[4];
    if (stride[1] != 1) {
      auto* const dense = reinterpret_cast<Residual*>(own.values.data());
      exchange</*kToImage=*/false>(run, stride, dense, places.residual);
      places.residual = dense;
      places.residual_step = run.channels;
    }
  }
  const int64_t* const stride = p_.conv.dst_stride;
  const bool is_in_place = stride[1] == 1;
  places.out = is_in_place ? static_cast<Dst*>(p_.conv.out) + offset_of(run, stride)
                           : reinterpret_cast<Dst*>(own.bytes.data());
  places.out_step = is_in_place ? stride[4] : run.channels;
  return places;
}

template <class Dst>
void QuantizedEpilogue::copy_to_image(const QuantizedRun& run, const Workspace& own) const {
  const int64_t* const stride = p_.conv.dst_stride;
  if (stride[1] == 1)
    return;
  Dst* const image = static_cast<Dst*>(p_.conv.out) + offset_of(run, stride);
  exchange</*kToImage=*/true>(run, stride, reinterpret_cast<Dst*>(own.bytes.data()), image);
}

auto QuantizedEpilogue::tile_output(const QuantizedRun& run, const Workspace& own) const
    -> TileOutput {
  const auto [scale, bias, compensation] = channels_of(run);
  const TileChannels channels{scale, bias, compensation};
  const bool has_relu = p_.conv.activation == Activation::relu;
  if (returns_floats())
    return TileSteps<float, void>(steps_, has_relu, channels, tile_places<float, void>(run, own));
  std::optional<TileOutput> output;
  with_byte_types(p_, [&]<class Dst, class Residual>() {
    output.emplace(
        std::in_place_type<TileSteps<Dst, Residual>>,
        steps_,
        has_relu,
        channels,
        tile_places<Dst, Residual>(run, own));
  });
  return *output;
}

void QuantizedEpilogue::finish(const QuantizedRun& run, const Workspace& own) const {
  if (returns_floats())
    copy_to_image<float>(run, own);
  else
    copy_to_image<uint8_t>(run, own); // int8 is copied alike
}

bool QuantizedEpilogue::returns_floats() const {
  return p_.dst_dtype == c10::kFloat && p_.conv.residual == nullptr;
}

bool QuantizedEpilogue::takes_bytes() const {
  return is_bounded_ && steps_.dst_scale > 0 && Quotients::can_divide_by(steps_.dst_scale) &&
      has_simple_activation() && with_byte_types(p_, []<class Dst, class Residual>() {});
}

bool QuantizedEpilogue::takes_tiles() const {
  return !p_.returns_sums && (takes_bytes() || (returns_floats() && has_simple_activation()));
}

bool QuantizedEpilogue::takes_parts_of_tiles() const {
  return takes_bytes();
}

bool QuantizedEpilogue::takes_lanes() const {
  return takes_bytes() && !p_.returns_sums && p_.conv.residual == nullptr;
}

void QuantizedEpilogue::store_lanes(
    const QuantizedRun& run,
    bool in_halves,
    const Channels& in_order,
    const Workspace& own) const {
  constexpr int at_once = 4; // sums of four pixels, or pairs
  const bool has_relu = p_.conv.activation == Activation::relu;
  const auto store = [&]<int count, class Steps>(const Steps& steps, int64_t at, int64_t first) {
    TileVector acc[count][kTileVectors];
    std::memcpy(acc, run.sums + at * run.pitch, sizeof(acc));
    steps.store(acc, first);
  };
  with_byte_types(p_, [&]<class Dst, class Residual>() {
    const TilePlaces<Dst, void> places = tile_places<Dst, void>(run, own);
    const TileChannels channels{in_order.scale, in_order.bias, nullptr};
    int64_t x = 0;
    if (in_halves) {
      const TileSteps<Dst, void, AccOrder::halves> steps(steps_, has_relu, channels, places);
      for (; x < run.pixels; x += 2 * at_once)
        store.template operator()<at_once>(steps, x / 2, x);
    } else {
      const TileSteps<Dst, void, AccOrder::lanes> steps(steps_, has_relu, channels, places);
      for (; x + at_once <= run.pixels; x += at_once)
        store.template operator()<at_once>(steps, x, x);
      for (; x < run.pixels; x++)
        store.template operator()<1>(steps, x, x);
    }
    copy_to_image<Dst>(run, own);
  });
}
#else
bool QuantizedEpilogue::takes_tiles() const {
  return false;
}

bool QuantizedEpilogue::takes_parts_of_tiles() const {
  return false;
}

bool QuantizedEpilogue::takes_lanes() const {
  return false;
}

void QuantizedEpilogue::store_lanes(
    const QuantizedRun& /*run*/,
    bool /*in_halves*/,
    const Channels& /*in_order*/,
    const Workspace& /*own*/) const {}
#endif

void QuantizedEpilogue::store(const QuantizedRun& run, const Workspace& own) const {
  if (p_.returns_sums) {
    const Channels channels = channels_of(run);
    auto* const sums = reinterpret_cast<int32_t*>(own.bytes.data());
    for (int64_t x = 0; x < run.pixels; x++)
      for (int64_t c = 0; c < run.channels; c++)
        sums[x * run.channels + c] = channels.sum(run.sums[x * run.pitch + c], c);
    const int64_t* const stride = p_.conv.dst_stride;
    exchange</*kToImage=*/true>(
        run, stride, sums, static_cast<int32_t*>(p_.conv.out) + offset_of(run, stride));
    return;
  }
  if (try_store_bytes(run, own))
    return;
  const Channels channels = channels_of(run);
  for (int64_t x = 0; x < run.pixels; x++) {
    const int32_t* const sums = run.sums + x * run.pitch;
    float* const values = own.values.data() + x * run.channels;
    for (int64_t c = 0; c < run.channels; c++)
      values[c] = channels.value(sums[c], c);
  }
  if (p_.conv.residual != nullptr)
    dispatch(QuantizedResultTypes{}, p_.residual_dtype, [&]<class T>(std::type_identity<T>) {
      add_residual<T>(run, own);
    });
  if (p_.conv.activation != Activation::none)
    with_activation(p_.conv.activation, [&](auto tag) {
      const auto* const slopes = static_cast<const float*>(p_.conv.slopes);
      activate_all<tag.value>(
          own.values.data(),
          run.pixels,
          run.channels,
          p_.conv.parameters,
          slopes == nullptr ? nullptr : slopes + run.channel);
    });
  dispatch(QuantizedResultTypes{}, p_.dst_dtype, [&]<class Dst>(std::type_identity<Dst>) {
    store_as<Dst>(run, own);
  });
}

} // namespace torch_dnnl
