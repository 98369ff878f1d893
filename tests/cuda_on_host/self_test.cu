// Kernels that try cuda_on_host itself: a program that ends with 0 when all results are right.
// The macros plant the mistakes that a sanitizer or the scheduler has to report: OMIT_BARRIER,
// OMIT_SYNCWARP, OVERRUN_STATIC, OVERRUN_DYNAMIC, OVERRUN_GLOBAL.
// For the host only: one kernel throws.
#include "core/cuda/launch.h"
#include "core/host_device.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace {

using torch_dnnl::cuda::dynamic_shared;
using torch_dnnl::cuda::for_each_element;
using torch_dnnl::cuda::launch;

#ifdef OVERRUN_STATIC
constexpr int kExtraStatic = 1;
#else
constexpr int kExtraStatic = 0;
#endif
#ifdef OVERRUN_DYNAMIC
constexpr int kExtraDynamic = 1;
#else
constexpr int kExtraDynamic = 0;
#endif
#ifdef OVERRUN_GLOBAL
constexpr int kExtraGlobal = 1;
#else
constexpr int kExtraGlobal = 0;
#endif

__device__ void barrier() {
#ifndef OMIT_BARRIER
  __syncthreads();
#endif
}

// One tile per block; the block is kTile x 4.
template <int kTile>
__global__ void
transpose(const float* __restrict__ src, float* __restrict__ dst, int64_t rows, int64_t cols) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t r0 = int64_t(blockIdx.y) * kTile, c0 = int64_t(blockIdx.x) * kTile;
  const int x = threadIdx.x;
  for (int i = threadIdx.y; i < kTile; i += blockDim.y)
    if (r0 + i < rows && c0 + x < cols)
      tile[i][x] = src[(r0 + i) * cols + c0 + x];
  barrier();
  for (int i = threadIdx.y; i < kTile; i += blockDim.y)
    if (c0 + i < cols && r0 + x < rows)
      dst[(c0 + i) * rows + r0 + x] = tile[x][i];
}

// One row per block of one warp.
__global__ void sum_rows(const float* src, float* dst, int cols) {
  float sum = 0;
  for (int c = threadIdx.x; c < cols; c += warpSize)
    sum += src[int64_t(blockIdx.x) * cols + c];
  for (int m = warpSize / 2; m != 0; m /= 2)
    sum += __shfl_xor_sync(~0u, sum, m);
  if (threadIdx.x == 0)
    dst[blockIdx.x] = sum;
}

// dst[i] = src[n - 1 - i] through dynamic shared memory, one block of n threads.
__global__ void reverse(const int* src, int* dst, int n) {
  int* buffer = dynamic_shared<int>();
  buffer[threadIdx.x + kExtraDynamic] = src[threadIdx.x];
  barrier();
  dst[threadIdx.x] = buffer[n - 1 - threadIdx.x];
}

template <int kSize>
__global__ void static_sum(int* dst) {
  __shared__ int buffer[kSize];
  buffer[threadIdx.x + kExtraStatic] = threadIdx.x;
  barrier();
  int sum = 0;
  for (int i = 0; i < kSize; i++)
    sum += buffer[i];
  dst[threadIdx.x] = sum;
}

// Shared memory must not be zero at the start of any block.
__global__ void uninitialised(float* dst) {
  __shared__ float value[1];
  dst[2 * blockIdx.x] = value[0];
  dst[2 * blockIdx.x + 1] = dynamic_shared<float>()[0];
  value[0] = 1;
}

// A block of 40 threads: the last warp has 8 lanes.
__global__ void warp_intrinsics(int* out) {
  const int thread = threadIdx.x, lane = thread % warpSize;
  const unsigned mask = thread < warpSize ? ~0u : 0xffu;
  int* row = out + thread * 10;
  row[0] = __shfl_sync(mask, thread, 3);
  row[1] = __shfl_up_sync(mask, thread, 2u);
  row[2] = __shfl_down_sync(mask, thread, 2u, 8);
  row[3] = __shfl_xor_sync(mask, thread, 1);
  row[4] = __ballot_sync(mask, lane % 3 == 0);
  row[5] = __any_sync(mask, lane == 5);
  row[6] = __all_sync(mask, lane < 8);
  const unsigned half = lane % 2 ? mask & 0xaaaaaaaau : mask & 0x55555555u;
  row[7] = lane % 2 ? __shfl_sync(half, thread, 1) : __shfl_sync(half, thread, 2);
  row[8] = __shfl_sync(mask, thread, lane, 4);
#ifndef OMIT_SYNCWARP
  __syncwarp(mask); // the shuffles above order no memory
#endif
  row[9] = out[(thread ^ 1) * 10 + 3];
}

__global__ void count(int* total) {
  atomicAdd(total, 1);
}

// Threads that have returned are not waited for.
__global__ void early_return(int* dst, int n) {
  if (int(threadIdx.x) >= n)
    return;
  dst[threadIdx.x] = threadIdx.x;
  __syncthreads();
  dst[n + threadIdx.x] = dst[n - 1 - threadIdx.x];
}

__global__ void diverge() {
  if (threadIdx.x % 2)
    __syncthreads();
  else
    __syncwarp();
}

__global__ void fail() {
  if (threadIdx.x == 7)
    throw std::runtime_error("planted");
  __syncthreads();
}

__global__ void nothing() {}

__global__ void many_barriers() {
  for (int i = 0; i < 100; i++)
    __syncthreads();
}

struct Square {
  const int64_t* src;
  int64_t* dst;
  TORCH_DNNL_HD void operator()(int64_t i) const {
    dst[i] = src[i + kExtraGlobal] * src[i];
  }
};

int wrong = 0;

void expect(bool holds, const char* what) {
  if (!holds && wrong++ < 10)
    std::printf("wrong: %s\n", what);
}

template <class F>
bool throws(F f) {
  try {
    f();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

void test_memory() {
  const int64_t rows = 37, cols = 45;
  std::vector<float> a(rows * cols), b(rows * cols, NAN), sums(rows, NAN);
  for (size_t i = 0; i < a.size(); i++)
    a[i] = float(i % 101);
  const dim3 tiles((cols + 15) / 16, (rows + 15) / 16);
  launch(transpose<16>, tiles, dim3(16, 4), 0, a.data(), b.data(), rows, cols);
  launch(sum_rows, dim3(rows), dim3(32), 0, a.data(), sums.data(), int(cols));
  for (int64_t r = 0; r < rows; r++) {
    float sum = 0;
    for (int64_t c = 0; c < cols; c++) {
      expect(b[c * rows + r] == a[r * cols + c], "transpose");
      sum += a[r * cols + c];
    }
    expect(sums[r] == sum, "sum_rows");
  }

  const int n = 75;
  std::vector<int> in(n), out(n);
  for (int i = 0; i < n; i++)
    in[i] = i;
  launch(reverse, dim3(1), dim3(n), n * sizeof(int), in.data(), out.data(), n);
  for (int i = 0; i < n; i++)
    expect(out[i] == n - 1 - i, "reverse");
  launch(static_sum<75>, dim3(1), dim3(n), 0, out.data());
  expect(out[3] == n * (n - 1) / 2, "static_sum");

  std::vector<float> seen(6, 0.f);
  launch(uninitialised, dim3(3), dim3(1), sizeof(float), seen.data());
  for (float value : seen)
    expect(std::isnan(value), "uninitialised");

  std::vector<int64_t> x(300), y(300, -1);
  for (int64_t i = 0; i < 300; i++)
    x[i] = i;
  for_each_element(int64_t(x.size()), Square{x.data(), y.data()});
  for_each_element(0, Square{nullptr, nullptr});
  for (int64_t i = 0; i < 300; i++)
    expect(y[i] == i * i, "for_each_element");
}

void test_warps() {
  std::vector<int> out(400, -1);
  launch(warp_intrinsics, dim3(1), dim3(40), 0, out.data());
  for (int thread = 0; thread < 40; thread++) {
    const int lane = thread % 32, first = thread - lane, lanes = thread < 32 ? 32 : 8;
    const int* row = out.data() + thread * 10;
    unsigned ballot = 0;
    for (int i = 0; i < lanes; i += 3)
      ballot |= 1u << i;
    expect(row[0] == first + 3, "__shfl_sync");
    expect(row[1] == (lane < 2 ? thread : thread - 2), "__shfl_up_sync");
    expect(row[2] == (lane % 8 < 6 ? thread + 2 : thread), "__shfl_down_sync with a width");
    expect(row[3] == (thread ^ 1), "__shfl_xor_sync");
    expect(unsigned(row[4]) == ballot, "__ballot_sync");
    expect(row[5] == 1, "__any_sync");
    expect(row[6] == (lanes == 8), "__all_sync");
    expect(row[7] == first + (lane % 2 ? 1 : 2), "__shfl_sync with two masks");
    expect(row[8] == thread, "__shfl_sync with a width");
    expect(row[9] == thread, "__syncwarp");
  }
}

void test_scheduler() {
  int total = 0;
  launch(count, dim3(3, 2, 2), dim3(5, 3, 2), 0, &total);
  expect(total == 12 * 30, "atomicAdd");
  std::vector<int> out(20, -1);
  launch(early_return, dim3(1), dim3(64), 0, out.data(), 10);
  expect(out[10] == 9 && out[19] == 0, "early_return");

  expect(throws([] { launch(fail, dim3(2), dim3(64), 0); }), "an exception in a kernel");
  expect(throws([] { launch(diverge, dim3(1), dim3(32), 0); }), "a barrier not reached by all");
  expect(throws([] { launch(nothing, dim3(1), dim3(1025), 0); }), "a block too large");
  expect(throws([] { launch(nothing, dim3(1), dim3(1, 1, 65), 0); }), "a block too large in z");
  expect(throws([] { launch(nothing, dim3(1, 65536), dim3(1), 0); }), "a grid too large");
  expect(throws([] { launch(nothing, dim3(0), dim3(1), 0); }), "an empty grid");
  expect(throws([] { launch(nothing, dim3(1), dim3(1), 227 * 1024 + 1); }), "shared memory");
  launch(nothing, dim3(2), dim3(1024), 227 * 1024);
  expect(!throws([] { launch(many_barriers, dim3(1), dim3(64), 0); }), "a launch after a failure");
}

// Milliseconds per launch, with `self_test time`.
template <class F>
void report_time(const char* what, F f) {
  using Clock = std::chrono::steady_clock;
  f();
  const auto start = Clock::now();
  int runs = 0;
  for (; runs < 3 || Clock::now() - start < std::chrono::milliseconds(200); runs++)
    f();
  const std::chrono::duration<double, std::milli> spent = Clock::now() - start;
  std::printf("%-32s %.4f ms\n", what, spent.count() / runs);
}

void report_times() {
  std::vector<float> data(100, 1), sum(1);
  report_time("128 threads", [] { launch(nothing, dim3(1), dim3(128), 0); });
  report_time("256 threads", [] { launch(nothing, dim3(1), dim3(256), 0); });
  report_time("1024 threads", [] { launch(nothing, dim3(1), dim3(1024), 0); });
  report_time("128 threads, 100 barriers", [] { launch(many_barriers, dim3(1), dim3(128), 0); });
  report_time("1024 threads, 100 barriers", [] { launch(many_barriers, dim3(1), dim3(1024), 0); });
  report_time("warp, 5 shuffles", [&] {
    launch(sum_rows, dim3(1), dim3(32), 0, data.data(), sum.data(), 100);
  });
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "time") == 0) {
    report_times();
    return 0;
  }
  test_memory();
  test_warps();
  test_scheduler();
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
