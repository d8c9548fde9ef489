// Records which bytes an operator reads and writes, and which storages it allocates.
#pragma once

#include <c10/core/GeneratorImpl.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdint>

#include "numerics/signature.h"
#include "numerics/tensor_memory.h"
#include "storages/streams.h"
#include "thread/thread.h"

namespace lanescope {

// Finds the gaps in a tensor's byte range: runs of bytes at one distance, if its strides allow
// that.
[[gnu::noinline]] inline void find_gaps(const c10::TensorImpl& tensor, Access& access) {
  const c10::IntArrayRef sizes = tensor.sizes_default(), strides = tensor.strides_default();
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  access.run = item;
  access.stride = 0;
  int64_t count = 1;
  // From the innermost dimension outwards: the smallest stride not yet handled.
  uint64_t done = 0;
  for (size_t step = 0; step < sizes.size(); ++step) {
    size_t next = sizes.size();
    for (size_t i = 0; i < sizes.size() && i < 64; ++i) {
      const bool open = (done >> i & 1) == 0 && sizes[i] > 1 && strides[i] != 0;
      if (open && (next == sizes.size() || strides[i] < strides[next])) {
        next = i;
      }
    }
    if (next == sizes.size()) {
      return;
    }
    done |= uint64_t{1} << next;
    const int64_t stride = strides[next] * item;
    if (access.stride == 0 && stride <= access.run) {  // continues the run, or overlaps it
      access.run += (sizes[next] - 1) * stride;
    } else if (access.stride == 0) {
      access.stride = stride;
      count = sizes[next];
    } else if (stride == access.stride * count) {
      count *= sizes[next];
    } else {
      access.stride = -1;
      return;
    }
  }
}

enum class Range { known, empty, unknown };

// Fills `access` with the byte range of a tensor and `flags`. Unknown: the tensor has no storage, a
// storage without memory, or a symbolic shape.
inline Range range_of(const c10::TensorImpl& tensor, uint32_t flags, Access& access) {
  if (!tensor.has_storage() || tensor.has_symbolic_sizes_strides()) {
    return Range::unknown;
  }
  access.bytes = extent_of(tensor);
  if (access.bytes == 0) {
    return Range::empty;
  }
  const char* base = data_of(tensor.unsafe_storage());
  if (base == nullptr) {
    return Range::unknown;
  }
  access.storage = reinterpret_cast<uint64_t>(base);
  access.offset = begin_of(tensor);
  const auto& version = tensor.version_counter();
  access.version = version.enabled() ? version.current_version() : 0;
  access.flags = flags;
  access.run = access.bytes;
  access.stride = 0;
  if (!tensor.is_non_overlapping_and_dense_default()) {
    find_gaps(tensor, access);
    access.flags |= access.stride != 0 ? layout::ACCESS_STRIDED : 0;
  }
  return Range::known;
}

inline void add_access(Thread& thread, const c10::TensorImpl& tensor, Access& access) {
  access.stream = stream_of(thread, tensor);
  access.pinned = recording.streams && tensor.is_cpu() && is_pinned(tensor);
  thread.accesses.push_back(access);
}

[[gnu::noinline]] inline void note_access(Thread& thread, const c10::TensorImpl& tensor,
                                          uint32_t flags) {
  Access access;
  const Range range = range_of(tensor, flags, access);
  if (range == Range::known) {
    add_access(thread, tensor, access);
  } else if (range == Range::unknown) {
    thread.counters.add(Counters::UNTRACKED);
  }
}

// Records that an operator draws from a random generator, if it got one: a write of one byte at an
// odd address, where no storage begins.
[[gnu::noinline]] inline void note_draw(Thread& thread, const c10::GeneratorImpl* generator) {
  if (generator == nullptr) {
    return;
  }
  Access access{};
  access.storage = reinterpret_cast<uint64_t>(generator) | 1;
  access.bytes = access.run = 1;
  access.flags = layout::ACCESS_WRITE;
  thread.accesses.push_back(access);
}

// Records the storage of a result as allocated here, unless an input or an inner operator had it
// already. `births`: how many the thread had allocated when the operator began.
[[gnu::noinline]] inline void note_result(Thread& thread, const c10::TensorImpl& tensor, size_t own,
                                          uint64_t births) {
  Access access;
  if (range_of(tensor, layout::ACCESS_WRITE, access) != Range::known) {
    return;
  }
  const auto begin = thread.accesses.begin() + static_cast<std::ptrdiff_t>(own);
  for (auto known = begin; known != thread.accesses.end(); ++known) {
    if (known->storage == access.storage) {
      return;
    }
  }
  const uint64_t since =
      std::max(births, thread.born - std::min<uint64_t>(thread.born, Thread::MAX_BIRTHS));
  bool born_inside = false;
  for (uint64_t i = since; i < thread.born; ++i) {
    born_inside = born_inside || thread.births[i % Thread::MAX_BIRTHS] == access.storage;
  }
  if (!born_inside) {
    thread.births[thread.born++ % Thread::MAX_BIRTHS] = access.storage;
    access.flags |= layout::ACCESS_BIRTH;
  }
  add_access(thread, tensor, access);
}

// For filtered operators, keeps only the storages they allocate.
inline void keep_births(Thread& thread, size_t own) {
  auto& all = thread.accesses;
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(own);
  all.erase(std::remove_if(begin, all.end(),
                           [](const Access& a) { return (a.flags & layout::ACCESS_BIRTH) == 0; }),
            all.end());
}

// Gives an operator's accesses to pinned memory to the stream of its others: that copies it.
[[gnu::noinline]] inline void give_pinned_to_stream(Thread& thread, size_t own) {
  const auto begin = thread.accesses.begin() + static_cast<std::ptrdiff_t>(own);
  const auto on_stream = [](const Access& access) { return access.stream != 0; };
  const auto device = std::find_if(begin, thread.accesses.end(), on_stream);
  for (auto one = begin; device != thread.accesses.end() && one != thread.accesses.end(); ++one) {
    one->stream = one->pinned ? device->stream : one->stream;
  }
}

// Writes the accesses from `own` on, two per record; one with gaps takes the room of two. `made`:
// time of accesses that no operator's record follows; 0 if one does.
[[gnu::noinline]] inline void write_accesses(Thread& thread, size_t own, int64_t made) {
  if (__builtin_expect(recording.streams, 0)) {
    give_pinned_to_stream(thread, own);
  }
  const auto& all = thread.accesses;
  for (size_t i = own; i < all.size();) {
    Record* slot = thread.journal.next();
    if (slot == nullptr) {
      thread.note_lost();
      return;
    }
    AccessRecord record{};
    const Access& first = all[i];
    const bool two = made == 0 && first.stride == 0 && i + 1 < all.size() &&
                     all[i + 1].stride == 0 && all[i + 1].stream == first.stream;
    record.count = two ? 2 : 1;
    record.flags = static_cast<uint16_t>(first.flags);
    record.version0 = first.version;
    record.stream = first.stream;
    record.storage0 = first.storage;
    record.offset0 = first.offset;
    record.bytes0 = first.bytes;
    if (two) {
      const Access& second = all[i + 1];
      record.flags |= static_cast<uint16_t>(second.flags << 8);
      record.version1 = second.version;
      record.storage1 = second.storage;
      record.offset1 = second.offset;
      record.bytes1 = second.bytes;
    } else if (first.stride != 0) {
      record.offset1 = first.run;
      record.bytes1 = first.stride;
    }
    if (made != 0) {
      record.flags |= layout::ACCESS_APART;
      record.storage1 = static_cast<uint64_t>(made);
    }
    i += record.count;
    std::memcpy(reinterpret_cast<char*>(slot) + 1, reinterpret_cast<const char*>(&record) + 1,
                sizeof record - 1);
    thread.journal.publish(layout::KIND_ACCESS);
  }
}

}  // namespace lanescope
