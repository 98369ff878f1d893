#include "conv/cpu/quantized/epilogue.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conv/quantized/reference.h"
#include "core/cpu/simd.h"
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

typedef int32_t Ints __attribute__((vector_size(sizeof(Vector<float>))));
// The lesser and the greater of two numbers; a NaN stays if it is the first. (Of comparisons GCC
// makes two instructions.)
inline Vector<float> at_most(Vector<float> value, Vector<float> bound) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_min_ps(bound, value);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_min_ps(bound, value);
#else
  return value > bound ? bound : value;
#endif
}
inline Vector<float> at_least(Vector<float> value, Vector<float> bound) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_max_ps(bound, value);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_max_ps(bound, value);
#else
  return value < bound ? bound : value;
#endif
}

// The nearest integers to a vector of numbers, ties to even, saturated; 0 of NaN: as convert() has
// it. The addition rounds, and leaves the integer in the lowest bits.
template <class Dst, bool is_finite>
inline Ints nearest(Vector<float> value) {
  const Vector<float> low = broadcast(float(std::numeric_limits<Dst>::min()));
  const Vector<float> high = broadcast(float(std::numeric_limits<Dst>::max()));
  Vector<float> limited = at_least(at_most(value, high), low);
  if constexpr (!is_finite)
    limited = value == value ? limited : Vector<float>{};
  return Ints(limited + broadcast(0x1.8p23f));
}

// The lowest bytes of integers. (GCC's own conversion takes them one by one.)
inline void store_low_bytes(Ints values, void* to) {
#if defined(CPU_CAPABILITY_AVX512)
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(values)));
#elif defined(CPU_CAPABILITY_AVX2)
  const auto bytes = __m256i(values & 255);
  const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
  const __m128i words = _mm_packs_epi32(low, high);
  _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  for (int64_t i = 0; i < kLanes<float>; i++)
    static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(values[i]);
#endif
}

// The n first of them, at most a vector.
template <class Dst>
inline void store_bytes_of(Ints values, int64_t n, Dst* to) {
  if (n >= kLanes<float>)
    return store_low_bytes(values, to);
  Dst bytes[kLanes<float>];
  store_low_bytes(values, bytes);
  simd_detail::copy_part<kLanes<float>>(to, bytes, n);
}

// v / scale + zero point as an integer.
template <class Dst>
struct ByDivision {
  Vector<float> scale, zero_point;

  explicit ByDivision(const QuantizedSteps& steps)
      : scale(broadcast(steps.dst_scale)), zero_point(broadcast(steps.dst_zero_point)) {}

  Ints operator()(Vector<float> v) const {
    return nearest<Dst, false>(v / scale + zero_point);
  }
};

#if defined(__FMA__)
// The same at a fraction of what a division takes: one step of Newton's method from the product
// with the reciprocal gives the correctly rounded quotient (Markstein, IA-64 and Elementary
// Functions, 2000, chapter 8). What saturates anyway is limited first, so that nothing overflows.
template <class Dst, bool is_bounded>
struct ByReciprocal {
  Vector<float> scale, zero_point, reciprocal, most;

  explicit ByReciprocal(const QuantizedSteps& steps)
      : scale(broadcast(steps.dst_scale)),
        zero_point(broadcast(steps.dst_zero_point)),
        reciprocal(broadcast(1 / steps.dst_scale)),
        most(broadcast(1024 * std::fabs(steps.dst_scale))) {}

  Ints operator()(Vector<float> v) const {
    if constexpr (!is_bounded)
      v = at_least(at_most(v, most), -most);
    const Vector<float> quotient = v * reciprocal;
    const Vector<float> rest = multiply_add<float>(-quotient, scale, v);
    return nearest<Dst, is_bounded>(multiply_add<float>(rest, reciprocal, quotient) + zero_point);
  }
  // Whether neither the reciprocal nor the products leave the range of normal numbers.
  static bool is_exact(float scale) {
    return std::fabs(scale) > 0x1p-60f && std::fabs(scale) < 0x1p60f;
  }
};
#endif

// f(the function object that makes integers of values). is_bounded: they are finite and below 2^62.
template <class Dst, bool is_bounded, class F>
void with_rounding(const QuantizedSteps& steps, const F& f) {
#if defined(__FMA__)
  if (ByReciprocal<Dst, is_bounded>::is_exact(steps.dst_scale))
    return f(ByReciprocal<Dst, is_bounded>(steps));
#endif
  f(ByDivision<Dst>(steps));
}

template <class Dst>
void convert_to_bytes(const float* from, int64_t n, const QuantizedSteps& steps, Dst* to) {
  with_rounding<Dst, /*is_bounded=*/false>(steps, [&](const auto& round) {
    for (int64_t i = 0; i < n; i += kLanes<float>)
      store_bytes_of(round(load_vector(from + i)), n - i, to + i); // a workspace's values
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
  constexpr int64_t most = 256; // columns at a time
  if (stride[4] == 1 && channels > 1 && channels <= most && pixels <= most) {
    int64_t offsets[most];
    const int64_t rows = kToImage ? pixels : channels, columns = kToImage ? channels : pixels;
    const int64_t row = kToImage ? channels : stride[1], column = kToImage ? stride[1] : channels;
    for (int64_t i = 0; i < columns; i++)
      offsets[i] = i * column * int64_t(sizeof(T));
    const void* const from = kToImage ? static_cast<const void*>(dense) : image;
    void* const to = const_cast<void*>(kToImage ? static_cast<const void*>(image) : dense);
    transpose(
        {static_cast<const char*>(from),
         nullptr,
         row * int64_t(sizeof(T)),
         rows,
         static_cast<char*>(to),
         offsets,
         /*column_step=*/0,
         columns,
         /*may_overread=*/false,
         /*is_streamed=*/false},
        sizeof(T));
    return;
  }
  for (int64_t x = 0; x < pixels; x++)
    for (int64_t c = 0; c < channels; c++)
      move(dense[x * channels + c], image[c * stride[1] + x * stride[4]]);
}

// Of the channels of a pixel. Whole vectors of sums and of what belongs to channels can be read.
template <bool is_relu, class Dst, class Round>
inline void bytes_of_sums(
    const int32_t* sums,
    const QuantizedEpilogue::Channels& channels,
    int64_t n,
    const Round& round,
    Dst* to) {
  for (int64_t c = 0; c < n; c += kLanes<float>) {
    typedef uint32_t Modulo __attribute__((vector_size(sizeof(Ints))));
    Modulo products, excess;
    std::memcpy(&products, sums + c, sizeof(products));
    std::memcpy(&excess, channels.excess + c, sizeof(excess));
    Vector<float> v = __builtin_convertvector(Ints(products - excess), Vector<float>);
    v = v * load_vector(channels.scale + c) + load_vector(channels.bias + c);
    if constexpr (is_relu)
      v = at_least(v, Vector<float>{});
    store_bytes_of(round(v), n - c, to + c);
  }
}

template <Activation activation>
void activate_all(float* values, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    values[i] = activate_portably<activation>(values[i]);
}

} // namespace

QuantizedEpilogue::QuantizedEpilogue(const QuantizedProblem& p) : p_(p) {
  std::fill_n(scales_.data() + channels_, kRest, 0.0f);
  std::fill_n(biases_.data() + channels_, kRest, 0.0f);
  for (int64_t c = 0; c < channels_; c++) {
    const float scale = scales_.data()[c] = steps_.scale(p, c);
    const float bias = biases_.data()[c] = steps_.bias(p, c);
    // A sum is below 2^31.
    is_bounded_ &= std::fabs(scale) < 0x1p30f && std::fabs(bias) < 0x1p60f;
  }
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

// Bytes of sums, in one pass, where there is nothing in between but relu.
template <class Dst, bool is_relu, bool is_bounded>
void QuantizedEpilogue::store_bytes(const QuantizedRun& run, const Workspace& own) const {
  const int64_t* const stride = p_.conv.dst_stride;
  Dst* const image = static_cast<Dst*>(p_.conv.out) + offset_of(run, stride);
  const bool is_in_place = stride[1] == 1;
  Dst* const first = is_in_place ? image : reinterpret_cast<Dst*>(own.bytes.data());
  const int64_t step = is_in_place ? stride[4] : run.channels;
  const Channels channels = channels_of(run);
  with_rounding<Dst, is_bounded>(steps_, [&](const auto& round) {
    for (int64_t x = 0; x < run.pixels; x++) {
      bytes_of_sums<is_relu>(
          run.sums + x * run.pitch, channels, run.channels, round, first + x * step);
    }
  });
  if (!is_in_place)
    exchange</*kToImage=*/true>(run, stride, first, image);
}

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
  const Activation activation = p_.conv.activation;
  const bool is_relu = activation == Activation::relu;
  if (p_.conv.residual == nullptr && (is_relu || activation == Activation::none)) {
    const auto store = [&]<class Dst>(std::type_identity<Dst>) {
      using Store = decltype(&QuantizedEpilogue::store_bytes<Dst, false, false>);
      constexpr Store stores[2][2] = {
          {&QuantizedEpilogue::store_bytes<Dst, false, false>,
           &QuantizedEpilogue::store_bytes<Dst, false, true>},
          {&QuantizedEpilogue::store_bytes<Dst, true, false>,
           &QuantizedEpilogue::store_bytes<Dst, true, true>}};
      (this->*stores[is_relu][is_bounded_])(run, own);
    };
    if (p_.dst_dtype == c10::kChar)
      return store(std::type_identity<int8_t>());
    if (p_.dst_dtype == c10::kByte)
      return store(std::type_identity<uint8_t>());
  }
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
  if (activation != Activation::none)
    with_activation(activation, [&](auto tag) {
      activate_all<tag.value>(own.values.data(), run.pixels * run.channels);
    });
  dispatch(QuantizedResultTypes{}, p_.dst_dtype, [&]<class Dst>(std::type_identity<Dst>) {
    store_as<Dst>(run, own);
  });
}

} // namespace torch_dnnl
