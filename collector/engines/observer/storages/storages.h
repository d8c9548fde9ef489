// Remembers storages: who wrote them last, and the fingerprint of what was written.
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
  // The state of an input when an operator begins.
  struct Found {
    enum State {
      known,    // recorded operators wrote it
      foreign,  // no recorded operator wrote it, or a collective did and it has not been read since
      changed,  // differs from what was written last
      unset,    // allocated uninitialised (torch.empty), and still so
    } state = known;
    bool owned = false;         // if changed: an operator or a collective once wrote it
    bool derived = false;       // computed from uninitialised memory
    bool finite = false;        // all values are finite
    bool finite_known = false;  // `finite` is known to be true or false
    uint64_t expected = 0;      // if changed: the hash it had
  };

  // The functions below take tensors that can be read, unless they say "any".
  Found look(const c10::TensorImpl& tensor);

  // A tensor was allocated uninitialised. It may be filled without an operator.
  void made_unset(const c10::TensorImpl& tensor);

  // A tensor was read after an operator wrote it (`derived`: from uninitialised memory), or as an
  // input from elsewhere.
  void wrote(const c10::TensorImpl& tensor, const Fingerprint& fingerprint, bool derived);
  void read(const c10::TensorImpl& tensor, const Fingerprint& fingerprint);

  // An operator is about to write the tensor (any): its value is unknown until read.
  void writes(const c10::TensorImpl& tensor);

  // A filtered operator wrote or made the tensor (any).
  void wrote_unread(const c10::TensorImpl& tensor);
  void made_unread(const c10::TensorImpl& tensor);

  // A collective will write the tensor (any) at some time; `awaited`: one may be writing it now.
  void awaits(const c10::TensorImpl& tensor);
  bool awaited(const c10::TensorImpl& tensor);

  // Something may have written to any storage without an operator.
  void distrust();

  void clear();

 private:
  static constexpr size_t MAX_RANGES = 64;  // remembered per storage
  static constexpr size_t MAX_STORAGES = 65536;

  // Bytes of a storage, as last read.
  struct Range {
    int64_t begin, end;
    uint64_t layout;  // 0: without gaps
    const void* data;
    uint32_t version;
    bool finite;
    bool written;  // by an operator, not only read
    bool owned;    // so written before it was found changed, or by a collective
    uint64_t probe, hash, serial, trust;
  };
  struct Known {
    explicit Known(c10::weak_intrusive_ptr<c10::StorageImpl> of) : storage(std::move(of)) {}

    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // held, so that its address is not reused
    bool foreign = false;
    bool in_flight = false;  // written by a collective and not read since
    bool finite = false;     // all values, for certain
    bool unset = false;      // allocated uninitialised, and not written since
    bool derived = false;
    uint64_t lay = 0;  // if unset: probe of its bytes
    std::vector<Range> ranges;
    size_t next = 0;  // index of the range to replace next
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
  uint64_t trust_ = 0;  // number of calls of `distrust`
  size_t purge_at_ = 1024;
  std::unordered_map<const c10::StorageImpl*, Known> all_;
};

Storages& storages();

}  // namespace lanescope
