// What is known of storages: who wrote them last, and which bits were there then.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numerics/fingerprint.h"

namespace lanescope {

class Storages {
 public:
  // An input, as an operator finds it.
  struct Found {
    enum State {
      known,    // recorded operators wrote it
      foreign,  // no recorded operator did, or a collective, and it has not been read since
      changed,  // it is not what was written last
      unset,    // it was made with whatever lay there (empty), and lies there still
    } state = known;
    bool owned = false;         // of one that changed: an operator wrote it once, or a collective
    bool derived = false;       // made of what nobody had set
    bool finite = false;        // that is known
    bool finite_known = false;  // or the contrary
    uint64_t expected = 0;      // of one that changed, the hash that it had
  };

  // All that follows is for tensors that can be read, unless it says otherwise.
  Found look(const c10::TensorImpl& tensor);

  // A tensor was made with whatever lies there. Whoever fills it may do so without an operator.
  void made_unset(const c10::TensorImpl& tensor);

  // A tensor was read: what an operator wrote (`derived`: out of what nobody had set), or what came
  // from elsewhere.
  void wrote(const c10::TensorImpl& tensor, const Fingerprint& fingerprint, bool derived);
  void read(const c10::TensorImpl& tensor, const Fingerprint& fingerprint);

  // An operator is about to write the tensor, any: it is not what it was.
  void writes(const c10::TensorImpl& tensor);

  // An operator that was left out wrote the tensor, or made it; any.
  void wrote_unread(const c10::TensorImpl& tensor);
  void made_unread(const c10::TensorImpl& tensor);

  // A collective will write the tensor, any, some time. Whether one may be at it:
  void awaits(const c10::TensorImpl& tensor);
  bool awaited(const c10::TensorImpl& tensor);

  // Something may have written to any of them without an operator.
  void distrust();

  void clear();

 private:
  static constexpr size_t MAX_RANGES = 64;  // remembered of one storage
  static constexpr size_t MAX_STORAGES = 65536;

  // Bytes of a storage as they were when last read.
  struct Range {
    int64_t begin, end;
    uint64_t layout;  // 0: without gaps
    const void* data;
    uint32_t version;
    bool finite;
    bool written;  // by an operator, not only read
    bool owned;    // or it was, before it was found changed; or by a collective
    uint64_t probe, hash, serial, trust;
  };
  struct Known {
    explicit Known(c10::weak_intrusive_ptr<c10::StorageImpl> of) : storage(std::move(of)) {}

    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its address is not used again meanwhile
    bool foreign = false;
    bool in_flight = false;  // a collective wrote it, and nobody has read it since
    bool finite = false;     // all of it, for certain
    bool unset = false;      // made so, and no operator has written to it since
    bool derived = false;
    uint64_t lay = 0;  // of one that is unset: probe of what lay there
    std::vector<Range> ranges;
    size_t next = 0;  // to be replaced
  };

  bool is_unset(const c10::TensorImpl& tensor);
  Known* find(const c10::TensorImpl& tensor);
  Known* find_or_add(const c10::TensorImpl& tensor);
  void remember(Known& known, const c10::TensorImpl& tensor, const Fingerprint& fingerprint,
                uint64_t probe, bool written, bool owned);
  bool shared(const Range& range) const;
  void forget(Known& known, const c10::TensorImpl& tensor);

  friend struct StoragesFork;
  std::mutex mutex_;
  uint64_t serial_ = 0;
  uint64_t trust_ = 0;  // counts how often they were distrusted
  size_t purge_at_ = 1024;
  std::unordered_map<const c10::StorageImpl*, Known> all_;
};

Storages& storages();

}  // namespace lanescope
