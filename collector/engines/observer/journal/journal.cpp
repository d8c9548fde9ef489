#include "journal/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/own_file.h"
#include "journal/background_compactor.h"
#include "journal/segment_ring.h"

namespace lanescope {

namespace {

constexpr int MADVISE_POPULATE_WRITE = 23;
constexpr uint64_t FIRST_CHUNK = 16 * 1024;
constexpr uint64_t CHUNK = 256 * 1024;
constexpr uint64_t RETRY_RECORDS = 256;  // after so many dropped records, try again

struct Header {
  char magic[8];
  uint32_t record_bytes;
  uint32_t header_bytes;
  uint32_t capacity;
  uint32_t ordinal;
  uint32_t segment;
  uint32_t kind;
  int64_t pid;
  int64_t native_id;
  int64_t created;
  uint64_t dropped;
  uint32_t open_depth;
};
static_assert(offsetof(Header, dropped) == layout::DROPPED_OFFSET, "journal.py differs");
static_assert(offsetof(Header, open_depth) == layout::OPEN_DEPTH_OFFSET, "journal.py differs");

// Creates and maps a file. On failure returns null and sets `failure` to the errno.
char* map_segment(const std::string& path, uint64_t bytes, int& failure) {
  OwnFile file(path.c_str(), O_RDWR | O_CREAT | O_EXCL);
  if (file.error() != 0) {
    failure = file.error();
    return nullptr;
  }
  char* memory = file.map(bytes);
  if (memory == nullptr) {
    failure = file.error();
    ::unlink(path.c_str());
  }
  return memory;
}

}  // namespace

Journal::~Journal() {
  abandon();
}

void Journal::begin(const std::string& folder, const Identity& identity, bool kept) {
  abandon();
  folder_ = folder;
  identity_ = identity;
  segment_ = 0;
  bytes_ = 0;
  dropped_ = 0;
  failure_ = 0;
  kept_ = kept;
  name_ = Record{};
  next_segment();
}

void Journal::abandon() {
  if (header_ != nullptr) {
    ::munmap(header_, bytes_);
  }
  header_ = nullptr;
  cursor_ = end_ = last_ = open_ = nullptr;
  folder_.clear();  // else a late record would replace the file
}

void Journal::close() {
  if (header_ == nullptr) {
    return;
  }
  const auto used = reinterpret_cast<char*>(cursor_) - header_;
  const std::string file = path(segment_);
  abandon();
  // If the folder was deleted, there are no blocks to release.
  if (::truncate(file.c_str(), used) != 0) {
    return;
  }
  seal(file, static_cast<uint64_t>(used));
}

void Journal::seal(const std::string& file, uint64_t used) {
  if (ring().on() && !kept_) {
    const bool copied = segment_ > 0 && name_.kind != layout::KIND_NONE;
    ring().seal(file, bytes_, used,
                (used - layout::HEADER_BYTES) / sizeof(Record) - (copied ? 1 : 0));
  }
}

void Journal::remove_open(uint32_t level, uint32_t height) {
  const uint32_t kept = std::min<uint32_t>(height, layout::OPEN_CAPACITY);
  if (header_ != nullptr && level + 1 < kept) {
    std::memmove(open_ + level, open_ + level + 1, (kept - level - 1) * sizeof(Record));
  }
  set_open(height - 1);
}

void Journal::set_kind(uint32_t kind) {
  identity_.kind = kind;
  if (header_ != nullptr) {
    reinterpret_cast<Header*>(header_)->kind = kind;
  }
}

std::string Journal::path(uint32_t segment) const {
  char name[64];
  std::snprintf(name, sizeof name, "/t%05u-%05u%s", identity_.ordinal, segment,
                layout::SEGMENT_SUFFIX);
  return folder_ + name;
}

void Journal::drop() {
  ++dropped_;
  if (header_ != nullptr) {
    reinterpret_cast<Header*>(header_)->dropped = dropped_;
  }
}

bool Journal::next_segment() {
  const bool first = header_ == nullptr;
  const bool bounded = ring().on();
  if (folder_.empty() || (failure_ != 0 && !may_pass(failure_))) {
    return false;
  }
  // If other threads use all the room, ask again only now and then.
  if ((bounded || failure_ != 0) && dropped_ % RETRY_RECORDS != 0) {
    return false;
  }
  uint64_t bytes = first ? layout::FIRST_SEGMENT_BYTES
                         : std::min<uint64_t>(bytes_ * 4, layout::LAST_SEGMENT_BYTES);
  if (bounded && (bytes = ring().take(bytes, kept_)) == 0) {
    return false;
  }
  const uint32_t segment = segment_ + (first ? 0 : 1);
  // On failure the full segment stays mapped: its header counts the lost records.
  if (!make_segment(segment, bytes)) {
    if (bounded) {
      ring().seal(path(segment), bytes, 0, 0);
    }
    return false;
  }
  if (segment % layout::FOLLOWER_AGAIN == layout::FOLLOWER_FIRST_SEGMENT) {
    start_follower();
  }
  return true;
}

bool Journal::make_segment(uint32_t segment, uint64_t bytes) {
  // Renamed once its header is written: readers only find complete segments.
  const std::string whole = path(segment);
  const std::string begun = whole + ".new";
  char* memory = map_segment(begun, bytes, failure_);
  if (memory == nullptr) {
    return false;
  }
  auto* const records = reinterpret_cast<Record*>(memory + layout::HEADER_BYTES);
  auto* next = records;
  if (header_ != nullptr) {
    // Open events stay open across segments: the reader looks at the last one only.
    std::memcpy(memory + layout::OPEN_DEPTH_OFFSET, header_ + layout::OPEN_DEPTH_OFFSET,
                layout::HEADER_BYTES - layout::OPEN_DEPTH_OFFSET);
  } else {
    auto* entries = reinterpret_cast<Record*>(memory + layout::OPEN_OFFSET);
    for (uint32_t level = 0; level < layout::OPEN_CAPACITY; ++level) {
      entries[level].sequence = -1;
    }
  }
  Header header{};
  std::memcpy(header.magic, layout::MAGIC, sizeof header.magic);
  header.record_bytes = layout::RECORD_BYTES;
  header.header_bytes = layout::HEADER_BYTES;
  header.capacity = static_cast<uint32_t>((bytes - layout::HEADER_BYTES) / sizeof(Record));
  header.ordinal = identity_.ordinal;
  header.segment = segment;
  header.kind = identity_.kind;
  header.pid = identity_.pid;
  header.native_id = identity_.native_id;
  header.created = identity_.created;
  header.dropped = dropped_;
  std::memcpy(memory, &header, offsetof(Header, open_depth));
  if (ring().on()) {
    const uint64_t overwritten = ring().overwritten();
    std::memcpy(memory + layout::OVERWRITTEN_OFFSET, &overwritten, sizeof overwritten);
    if (header_ != nullptr && name_.kind != layout::KIND_NONE) {
      *next++ = name_;  // the segment before may be overwritten
    }
  }
  if (::rename(begun.c_str(), whole.c_str()) != 0) {
    failure_ = errno;
    ::munmap(memory, bytes);
    return false;
  }
  if (header_ != nullptr) {
    ::munmap(header_, bytes_);
    seal(path(segment_), bytes_);
  }
  failure_ = 0;
  segment_ = segment;
  header_ = memory;
  bytes_ = bytes;
  open_ = reinterpret_cast<Record*>(memory + layout::OPEN_OFFSET);
  cursor_ = end_ = next;
  last_ = records + header.capacity;
  return true;
}

// The first write to a page costs more than all its records (3 us against 64 x 0.04 us). The kernel
// populates many pages at once for a tenth of that.
bool Journal::more() {
  if (cursor_ == last_ && !next_segment()) {
    return false;
  }
  auto* from = reinterpret_cast<char*>(cursor_);
  const uint64_t chunk = bytes_ <= layout::FIRST_SEGMENT_BYTES ? FIRST_CHUNK : CHUNK;
  const auto left = static_cast<uint64_t>(reinterpret_cast<char*>(last_) - from);
  // Whole pages only. A kernel without this request populates them one by one.
  const uint64_t before = static_cast<uint64_t>(from - header_) % layout::PAGE_BYTES;
  const uint64_t take = std::min(chunk - before, left);
  end_ = reinterpret_cast<Record*>(from + take);
  ::madvise(from - before, before + take, MADVISE_POPULATE_WRITE);
  return true;
}

}  // namespace lanescope
