// One thread's record files, in the layout of journal.py (which generates layout.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "layout.h"

namespace lanescope {

using layout::AccessRecord;
using layout::Record;
using layout::TensorMoreRecord;
using layout::TensorRecord;

struct Identity {
  int64_t pid = 0;
  int64_t native_id = 0;
  int64_t created = 0;
  uint32_t ordinal = 0;
  uint32_t kind = 0;
};

// Only its own thread writes it, so it needs no locks. If a segment cannot be created, the header
// of the last one counts the lost records. Nothing throws.
class Journal {
 public:
  Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // Starts in `folder` and forgets earlier open events. Later records do not overwrite a `kept`
  // journal.
  void begin(const std::string& folder, const Identity& identity, bool kept = false);

  // Releases the blocks behind the last record.
  void close();

  // Call in a forked child: leaves the parent's files as they are.
  void abandon();

  // Returns the zeroed slot of the next record; `publish` makes it valid. Null: the record is lost,
  // and counted.
  Record* next() {
    if (__builtin_expect(cursor_ != end_, 1)) {
      return cursor_;
    }
    if (more()) {
      return cursor_;
    }
    drop();
    return nullptr;
  }

  // The kind is written last: until then readers skip the record.
  void publish(uint8_t kind) {
    __atomic_store_n(&cursor_->kind, kind, __ATOMIC_RELEASE);
    ++cursor_;
  }

  void append(const Record& record) {
    if (Record* slot = next()) {
      std::memcpy(reinterpret_cast<char*>(slot) + 1, reinterpret_cast<const char*>(&record) + 1,
                  sizeof(Record) - 1);
      publish(record.kind);
      if (record.kind == layout::KIND_THREAD) {
        name_ = record;
      }
    }
  }

  // The stack of events that began and have not ended. The caller keeps its height.
  Record* open_entry(uint32_t level) {
    return level < layout::OPEN_CAPACITY && header_ != nullptr ? open_ + level : nullptr;
  }

  void set_open(uint32_t height) {
    if (header_ != nullptr) {
      const uint32_t kept = height < layout::OPEN_CAPACITY ? height : layout::OPEN_CAPACITY;
      __atomic_store_n(reinterpret_cast<uint32_t*>(header_ + layout::OPEN_DEPTH_OFFSET), kept,
                       __ATOMIC_RELEASE);
    }
  }

  // Removes an entry that is not the last one.
  void remove_open(uint32_t level, uint32_t height);

  void set_kind(uint32_t kind);

  // Changes with every record. Other threads may read it.
  uint64_t position() const {
    return reinterpret_cast<uint64_t>(__atomic_load_n(&cursor_, __ATOMIC_RELAXED));
  }
  uint64_t dropped() const { return dropped_; }
  int failure() const { return failure_; }
  const Identity& identity() const { return identity_; }

 private:
  bool more();
  bool next_segment();
  bool make_segment(uint32_t segment, uint64_t bytes);
  void seal(const std::string& file, uint64_t used);
  std::string path(uint32_t segment) const;
  void drop();

  Record* cursor_ = nullptr;
  Record* end_ = nullptr;   // of the populated part,
  Record* last_ = nullptr;  // of the segment
  Record* open_ = nullptr;
  char* header_ = nullptr;  // null: no segment is mapped
  uint64_t bytes_ = 0;
  uint64_t dropped_ = 0;
  uint32_t segment_ = 0;
  int failure_ = 0;
  bool kept_ = false;
  Record name_{};  // the last record of kind THREAD
  Identity identity_;
  std::string folder_;
};

}  // namespace lanescope
