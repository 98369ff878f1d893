#include "conv/cpu/shared/packed_weights.h"

#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/math.h"

namespace torch_dnnl {
namespace {

// Products with each weight up to which packing takes about 5 % of a call or more.
constexpr int64_t kFewPixels = 1024;
constexpr int64_t kFewPixelsOfWinograd = 8192;
// Fewer weights are packed about as fast as they are found.
constexpr int64_t kFewBytes = int64_t(16) << 10;

// What is used once in so many look-ups is not given up for what comes.
constexpr int64_t kLately = 1024;
// Weights that came once are remembered up to so many.
constexpr size_t kMostSeen = 4096;

int64_t bytes_of(const ConvProblem& p) {
  return p.groups * p.oc * p.ic * product(p.kernel) * int64_t(c10::elementSize(p.dtype));
}

// Where weights begin in memory: in exchanged problems (canonical.h) taps are in reverse.
const char* begin_of(const ConvProblem& p) {
  int64_t first = 0;
  for (int a = 0; a < 3; a++)
    first += std::min<int64_t>((p.kernel[a] - 1) * p.weights_stride[2 + a], 0);
  return static_cast<const char*>(p.weights) + first * int64_t(c10::elementSize(p.dtype));
}

// Whether weights lie next to each other, in any order, so that they can be copied as they lie.
bool are_dense(const ConvProblem& p) {
  const int64_t* ws = p.weights_stride;
  int64_t last = (p.groups - 1) * p.weights_group + (p.oc - 1) * ws[0] + (p.ic - 1) * ws[1];
  for (int a = 0; a < 3; a++)
    last += (p.kernel[a] - 1) * std::abs(ws[2 + a]);
  return (last + 1) * int64_t(c10::elementSize(p.dtype)) == bytes_of(p);
}

bool may_keep(const ConvProblem& p, Packing packing) {
  const int64_t pixels = p.n * product(p.dst_size);
  return pixels <= (packing == Packing::direct ? kFewPixels : kFewPixelsOfWinograd) &&
      bytes_of(p) >= kFewBytes && are_dense(p);
}

// What decides how weights are packed, and samples of them, by which weights are told apart before
// all their bytes are compared.
constexpr int64_t kSamples = 16;
using Key = std::array<int64_t, 15 + kSamples>;

Key key_of(const ConvProblem& p, Packing packing, int64_t width) {
  const int64_t *k = p.kernel, *ws = p.weights_stride;
  Key key{
      static_cast<int64_t>(packing),
      static_cast<int64_t>(p.pass),
      static_cast<int64_t>(p.dtype),
      width,
      p.groups,
      p.oc,
      p.ic,
      k[0],
      k[1],
      k[2],
      ws[0],
      ws[1],
      ws[2],
      ws[3],
      ws[4]};
  const int64_t last = bytes_of(p) - int64_t(sizeof(int64_t));
  for (int64_t i = 0; i < kSamples; i++) {
    const char* from = begin_of(p) + last * i / (kSamples - 1);
    std::memcpy(&key[15 + i], from, sizeof(int64_t));
  }
  return key;
}

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (const int64_t part : key) {
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// A copy of weights, and what was made of the copy: of the weights themselves it might not be, if
// another thread writes them meanwhile.
struct Kept {
  template <class Pack>
  Kept(const ConvProblem& p, int64_t packed_bytes, const Pack& pack)
      : bytes(bytes_of(p)), original(bytes), packed(packed_bytes) {
    at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(original.data() + begin, begin_of(p) + begin, end - begin);
    });
    pack(original.data() + (static_cast<const char*>(p.weights) - begin_of(p)), packed.data());
  }

  bool is_of(const ConvProblem& p) const {
    std::atomic<bool> is_same = true;
    at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end && is_same; at += kStep) {
        if (std::memcmp(original.data() + at, begin_of(p) + at, std::min(kStep, end - at)) != 0)
          is_same = false;
      }
    });
    return is_same;
  }

  static constexpr int64_t kGrain = int64_t(1) << 18, kStep = int64_t(1) << 14;

  const int64_t bytes; // of the original
  const Scratch<char> original, packed;
};

class Store;
Store& store();

// Calls do without it rather than wait for one another. A process is forked while no other thread
// has the lock: in the child nobody would give it back.
class Store {
 public:
  Store() {
    pthread_atfork(
        [] { store().mutex_.lock(); },
        [] { store().mutex_.unlock(); },
        [] { store().mutex_.unlock(); });
  }

  struct Found {
    std::shared_ptr<const Kept> kept; // with the same key; or null,
    bool should_keep = false;         // and if so, whether they should be kept
  };
  Found find(const Key& key, int64_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock)
      return {};
    lookups_++;
    if (const auto entry = by_key_.find(key); entry != by_key_.end()) {
      entry->second->used = lookups_;
      entries_.splice(entries_.begin(), entries_, entry->second);
      return {entry->second->kept};
    }
    if (seen_.size() >= kMostSeen)
      seen_.clear();
    const auto [seen, is_new] = seen_.try_emplace(Hash()(key), Seen::unchanged);
    return {nullptr, !is_new && seen->second == Seen::unchanged && make_room(bytes)};
  }

  void keep(const Key& key, std::shared_ptr<const Kept> kept, int64_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || by_key_.contains(key) || !make_room(bytes))
      return;
    entries_.push_front({key, std::move(kept), bytes, lookups_});
    by_key_[key] = entries_.begin();
    bytes_ += bytes;
  }

  // Weights that changed without another key may do so at every call.
  void forget(const Key& key) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock)
      return;
    seen_[Hash()(key)] = Seen::changed;
    if (const auto entry = by_key_.find(key); entry != by_key_.end())
      erase(entry->second);
  }

  int64_t limit_to(std::optional<int64_t> bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes.has_value()) {
      limit_ = *bytes;
      seen_.clear();
      while (bytes_ > limit_)
        erase(std::prev(entries_.end()));
    }
    return bytes_;
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Kept> kept;
    int64_t bytes, used; // used: the last look-up that found it
  };
  using Entries = std::list<Entry>;
  enum class Seen : int8_t { unchanged, changed };

  void erase(Entries::iterator entry) {
    bytes_ -= entry->bytes;
    by_key_.erase(entry->key);
    entries_.erase(entry);
  }

  bool make_room(int64_t bytes) {
    while (bytes_ + bytes > limit_) {
      if (entries_.empty() || lookups_ - entries_.back().used < kLately)
        return false;
      erase(std::prev(entries_.end()));
    }
    return true;
  }

  std::mutex mutex_;
  Entries entries_; // the last used first
  std::unordered_map<Key, Entries::iterator, Hash> by_key_;
  std::unordered_map<size_t, Seen> seen_; // by the hash of a key
  int64_t bytes_ = 0, limit_ = int64_t(64) << 20, lookups_ = 0;
};

Store& store() {
  static Store& store = *new Store; // never destroyed: threads may compute when the process ends
  return store;
}

// Bytes that are kept. `limit`: the most that may be, from now on.
int64_t packed_weights_bytes(std::optional<int64_t> limit) {
  TORCH_CHECK_VALUE(
      limit.value_or(0) >= 0,
      "packed_weights: expected limit to be at least 0, got ",
      limit.value_or(0));
  return store().limit_to(limit);
}

// Of this library alone, and of no tensors: it is not among the operators that every device has.
TORCH_LIBRARY(torch_dnnl_cpu, m) {
  m.def("packed_weights(int? limit=None) -> int", packed_weights_bytes);
}

} // namespace

std::shared_ptr<const void> packed_bytes(
    const ConvProblem& p,
    Packing packing,
    int64_t width,
    int64_t bytes,
    bool should_pack,
    const std::function<void(const void*, void*)>& pack) {
  const auto pack_for_this_call = [&]() -> std::shared_ptr<const void> {
    if (!should_pack)
      return nullptr;
    const auto packed = std::make_shared<const Scratch<char>>(bytes);
    pack(p.weights, packed->data());
    return {packed, packed->data()};
  };
  if (!may_keep(p, packing))
    return pack_for_this_call();
  const Key key = key_of(p, packing, width);
  const int64_t total = bytes_of(p) + bytes;
  auto [kept, should_keep] = store().find(key, total);
  if (kept != nullptr && !kept->is_of(p)) {
    store().forget(key);
    return pack_for_this_call();
  }
  if (kept == nullptr) {
    if (!should_keep)
      return pack_for_this_call();
    kept = std::make_shared<const Kept>(p, bytes, pack);
    store().keep(key, kept, total);
  }
  return {kept, kept->packed.data()};
}

} // namespace torch_dnnl
