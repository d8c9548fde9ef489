#include "storages/storages.h"

#include <pthread.h>

#include <algorithm>

#include "numerics/tensor_memory.h"

namespace lanescope {

namespace {

// The byte range of a tensor within its storage.
struct Extent {
  int64_t begin = 0, end = 0;
  uint64_t layout = 0;

  explicit Extent(const c10::TensorImpl& tensor) {
    const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
    const c10::IntArrayRef sizes = tensor.sizes_default(), strides = tensor.strides_default();
    int64_t count = 1;
    uint64_t mixed = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      count *= sizes[i];
      mixed = (mixed ^ static_cast<uint64_t>(sizes[i])) * 0xE7037ED1A0B428DBu;
      mixed = (mixed ^ static_cast<uint64_t>(strides[i])) * 0xA0761D6478BD642Fu;
    }
    begin = begin_of(tensor);
    end = begin + extent_of(tensor);
    layout = count * item == end - begin ? 0 : mixed | 1;
  }
};

c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

const char* memory_of(const c10::TensorImpl& tensor) {
  return data_of(tensor.unsafe_storage());
}

uint32_t version_of(const c10::TensorImpl& tensor) {
  const auto& version = tensor.version_counter();
  return version.enabled() ? version.current_version() : 0;
}

// Probes a tensor's bytes. 0 for one with gaps, which is not compared.
uint64_t probe_of(const c10::TensorImpl& tensor) {
  const Extent extent(tensor);
  return extent.layout == 0 ? probe(memory_of(tensor) + extent.begin, extent.end - extent.begin)
                            : 0;
}

// Probes the whole storage.
uint64_t probe_of_all(const c10::TensorImpl& tensor) {
  return probe(memory_of(tensor), static_cast<int64_t>(storage_of(tensor)->nbytes()));
}

}  // namespace

// Holds the lock during a fork, so that it is free in the child.
struct StoragesFork {
  static void before() { storages().mutex_.lock(); }
  static void after() { storages().mutex_.unlock(); }
};

Storages& storages() {
  static Storages& instance = *[] {
    auto* made = new Storages;
    ::pthread_atfork(StoragesFork::before, StoragesFork::after, StoragesFork::after);
    return made;
  }();
  return instance;
}

void Storages::made_unset(const c10::TensorImpl& tensor) {
  if (!can_read(tensor) || tensor.numel() == 0) {
    return;
  }
  const uint64_t lay = probe_of_all(tensor);
  std::lock_guard<std::mutex> hold(mutex_);
  if (Known* known = find_or_add(tensor)) {
    known->ranges.clear();
    known->foreign = known->unset = true;
    known->in_flight = known->finite = known->derived = false;
    known->lay = lay;
  }
}

bool Storages::is_unset(const c10::TensorImpl& tensor) {
  uint64_t lay = 0;
  {
    std::lock_guard<std::mutex> hold(mutex_);
    const Known* known = find(tensor);
    if (known == nullptr || !known->unset) {
      return false;
    }
    lay = known->lay;
  }
  return probe_of_all(tensor) == lay;
}

Storages::Found Storages::look(const c10::TensorImpl& tensor) {
  Found found;
  Range range{};
  if (is_unset(tensor)) {
    found.state = Found::unset;
    return found;
  }
  {
    std::lock_guard<std::mutex> hold(mutex_);
    const Known* known = find(tensor);
    if (known == nullptr) {
      found.state = all_.size() < MAX_STORAGES ? Found::foreign : Found::known;
      return found;
    }
    found.derived = known->derived;
    const Extent extent(tensor);
    const auto same =
        std::find_if(known->ranges.begin(), known->ranges.end(), [&](const Range& one) {
          return one.begin == extent.begin && one.end == extent.end && one.layout == extent.layout;
        });
    const bool current = same != known->ranges.end() && same->data == memory_of(tensor) &&
                         same->version == version_of(tensor);
    if (!current || same->trust != trust_) {
      found.state = known->foreign ? Found::foreign : Found::known;
      found.finite = found.finite_known = known->finite && !current;
      return found;
    }
    range = *same;
  }
  found.finite = range.finite;
  found.finite_known = true;
  if (range.layout != 0 || probe_of(tensor) == range.probe) {
    return found;
  }
  // Report the change only if no recorded operator has started to write since, and none wrote
  // through another storage.
  std::lock_guard<std::mutex> hold(mutex_);
  if (const Known* known = find(tensor)) {
    for (const Range& one : known->ranges) {
      if (one.serial == range.serial && !shared(range)) {
        found.state = Found::changed;
        found.expected = range.hash;
        found.owned = range.owned;
      }
    }
  }
  return found;
}

void Storages::wrote(const c10::TensorImpl& tensor, const Fingerprint& fingerprint, bool derived) {
  const uint64_t probe = probe_of(tensor);
  std::lock_guard<std::mutex> hold(mutex_);
  const bool fresh = find(tensor) == nullptr;
  if (Known* known = find_or_add(tensor)) {
    const Extent extent(tensor);
    const bool whole = extent.layout == 0 && extent.begin == 0 &&
                       extent.end >= static_cast<int64_t>(storage_of(tensor)->nbytes());
    if (whole) {
      known->foreign = known->in_flight = known->derived = false;
    }
    known->derived = known->derived || derived;
    known->finite = fingerprint.finite() && (whole || fresh || known->finite);
    remember(*known, tensor, fingerprint, probe, true, true);
  }
}

void Storages::read(const c10::TensorImpl& tensor, const Fingerprint& fingerprint) {
  const uint64_t probe = probe_of(tensor);
  std::lock_guard<std::mutex> hold(mutex_);
  const bool fresh = find(tensor) == nullptr;
  if (Known* known = find_or_add(tensor)) {
    const Extent extent(tensor);
    bool owned = known->in_flight;
    for (const Range& one : known->ranges) {
      owned = owned || (one.owned && one.begin < extent.end && extent.begin < one.end);
    }
    known->foreign = known->foreign || fresh;
    known->in_flight = false;  // `remember` also clears `unset`
    remember(*known, tensor, fingerprint, probe, false, owned);
  }
}

void Storages::writes(const c10::TensorImpl& tensor) {
  std::lock_guard<std::mutex> hold(mutex_);
  if (Known* known = find(tensor)) {
    forget(*known, tensor);
  }
}

void Storages::wrote_unread(const c10::TensorImpl& tensor) {
  std::lock_guard<std::mutex> hold(mutex_);
  if (Known* known = find(tensor)) {
    forget(*known, tensor);
    known->finite = false;
  }
}

void Storages::made_unread(const c10::TensorImpl& tensor) {
  std::lock_guard<std::mutex> hold(mutex_);
  if (find(tensor) == nullptr) {
    if (Known* known = find_or_add(tensor)) {
      known->finite = true;
    }
  }
}

void Storages::awaits(const c10::TensorImpl& tensor) {
  std::lock_guard<std::mutex> hold(mutex_);
  if (Known* known = find_or_add(tensor)) {
    forget(*known, tensor);
    known->foreign = known->in_flight = true;
    known->finite = known->derived = false;
  }
}

bool Storages::awaited(const c10::TensorImpl& tensor) {
  std::lock_guard<std::mutex> hold(mutex_);
  const Known* known = find(tensor);
  return known != nullptr && known->in_flight;
}

void Storages::distrust() {
  std::lock_guard<std::mutex> hold(mutex_);
  ++trust_;
}

void Storages::clear() {
  std::lock_guard<std::mutex> hold(mutex_);
  all_.clear();
  purge_at_ = 1024;
}

Storages::Known* Storages::find(const c10::TensorImpl& tensor) {
  const auto found = all_.find(storage_of(tensor));
  return found != all_.end() ? &found->second : nullptr;
}

Storages::Known* Storages::find_or_add(const c10::TensorImpl& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) {
    return nullptr;
  }
  const auto found = all_.find(storage);
  if (found != all_.end()) {
    return &found->second;
  }
  if (all_.size() >= purge_at_) {
    for (auto one = all_.begin(); one != all_.end();) {
      one = one->second.storage.expired() ? all_.erase(one) : std::next(one);
    }
    purge_at_ = std::min(MAX_STORAGES, std::max<size_t>(1024, 2 * all_.size()));
  }
  if (all_.size() >= MAX_STORAGES) {
    return nullptr;
  }
  c10::raw::weak_intrusive_ptr::incref(storage);
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
  return &all_.try_emplace(storage, std::move(weak)).first->second;
}

void Storages::remember(Known& known, const c10::TensorImpl& tensor, const Fingerprint& fingerprint,
                        uint64_t probe, bool written, bool owned) {
  forget(known, tensor);
  const Extent extent(tensor);
  const Range range{extent.begin,
                    extent.end,
                    extent.layout,
                    memory_of(tensor),
                    version_of(tensor),
                    fingerprint.finite(),
                    written,
                    owned,
                    probe,
                    fingerprint.hash,
                    ++serial_,
                    trust_};
  if (known.ranges.size() < MAX_RANGES) {
    known.ranges.push_back(range);
  } else {
    known.ranges[known.next++ % MAX_RANGES] = range;
  }
}

// True if an operator wrote these bytes later through another storage, as numpy and DLPack make
// them. Searches all storages, but only after bytes were found changed.
bool Storages::shared(const Range& range) const {
  const char* begin = static_cast<const char*>(range.data) + range.begin;
  const char* end = static_cast<const char*>(range.data) + range.end;
  for (const auto& [storage, known] : all_) {
    for (const Range& one : known.ranges) {
      const char* data = static_cast<const char*>(one.data);
      if (one.written && one.serial > range.serial && data + one.begin < end &&
          begin < data + one.end) {
        return true;
      }
    }
  }
  return false;
}

void Storages::forget(Known& known, const c10::TensorImpl& tensor) {
  known.unset = false;
  const Extent extent(tensor);
  auto& all = known.ranges;
  all.erase(std::remove_if(
                all.begin(), all.end(),
                [&](const Range& one) { return one.begin < extent.end && extent.begin < one.end; }),
            all.end());
}

}  // namespace lanescope
