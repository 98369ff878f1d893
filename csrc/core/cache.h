// Values that are built once per key and kept: the most recently used ones, up to a
// fixed number and amount of memory, shared by all threads.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

namespace torch_dnnl {

// Key: with ==. Value: made from a key, with bytes().
template <class Key, class Value>
class Cache {
 public:
  std::shared_ptr<const Value> get(const Key& key) {
    if (const Lock lock(mutex_, std::try_to_lock); lock) {
      for (auto it = entries_.begin(); it != entries_.end(); ++it) {
        if (it->key == key) {
          entries_.splice(entries_.begin(), entries_, it);
          return it->value;
        }
      }
    }
    // Built without the lock: a second thread that needs the same one builds it too.
    auto value = std::make_shared<const Value>(key);
    const Lock lock(mutex_, std::try_to_lock);
    if (!lock || value->bytes() > kMaxBytes)
      return value;
    entries_.push_front({key, value});
    bytes_ += value->bytes();
    while (bytes_ > kMaxBytes || entries_.size() > kMaxEntries) {
      bytes_ -= entries_.back().value->bytes();
      entries_.pop_back();
    }
    return value;
  }

 private:
  static constexpr size_t kMaxBytes = size_t(16) << 20;
  static constexpr size_t kMaxEntries = 64; // few enough to be searched in order

  struct Entry {
    Key key;
    std::shared_ptr<const Value> value;
  };

  // Nobody waits: whoever has the lock gives it back soon, but not to a process that was forked
  // meanwhile, where that thread does not exist.
  using Lock = std::unique_lock<std::mutex>;
  std::mutex mutex_;
  std::list<Entry> entries_;
  size_t bytes_ = 0;
};

} // namespace torch_dnnl
