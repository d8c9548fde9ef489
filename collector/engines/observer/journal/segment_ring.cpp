#include "journal/segment_ring.h"

#include <unistd.h>

#include <algorithm>

#include "layout.h"

namespace lanescope {

namespace {

uint64_t whole_pages(uint64_t bytes) {
  return std::max<uint64_t>(layout::SMALLEST_SEGMENT_BYTES,
                            bytes / layout::PAGE_BYTES * layout::PAGE_BYTES);
}

}  // namespace

Ring& ring() {
  // Never destroyed: threads may still record while the process ends.
  static Ring& instance = *new Ring;
  return instance;
}

void Ring::begin(uint64_t limit) {
  std::lock_guard<std::mutex> hold(mutex);
  limit_ = limit;
  history_.clear();
  live_ = total_ = kept_ = overwritten_ = 0;
}

uint64_t Ring::take(uint64_t wanted, bool kept) {
  wanted = whole_pages(std::min(wanted, limit_ / layout::RING_SHARE));
  std::lock_guard<std::mutex> hold(mutex);
  if (kept && kept_ + wanted > limit_ / layout::RING_KEPT_SHARE) {
    return 0;
  }
  while (wanted > layout::SMALLEST_SEGMENT_BYTES && live_ + wanted > limit_ / 2) {
    wanted = whole_pages(wanted / 2);
  }
  while (total_ + wanted > limit_ && !history_.empty()) {
    const Sealed& oldest = history_.front();
    ::unlink(oldest.path.c_str());  // the folder may have been deleted
    total_ -= oldest.bytes;
    overwritten_ += oldest.records;
    history_.pop_front();
  }
  if (total_ + wanted > limit_) {
    return 0;
  }
  total_ += wanted;
  live_ += wanted;
  kept_ += kept ? wanted : 0;
  return wanted;
}

void Ring::seal(std::string path, uint64_t taken, uint64_t used, uint64_t records) {
  const uint64_t bytes = (used + layout::PAGE_BYTES - 1) / layout::PAGE_BYTES * layout::PAGE_BYTES;
  std::lock_guard<std::mutex> hold(mutex);
  live_ -= taken;
  total_ += bytes - taken;
  if (bytes != 0) {
    history_.push_back({std::move(path), bytes, records});
  }
}

uint64_t Ring::overwritten() {
  std::lock_guard<std::mutex> hold(mutex);
  return overwritten_;
}

}  // namespace lanescope
