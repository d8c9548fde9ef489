#include "journal/string_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/fault_injection.h"
#include "base/own_file.h"
#include "layout.h"

namespace lanescope {

namespace {

constexpr uint64_t PAGE = layout::PAGE_BYTES;
constexpr uint64_t FIRST_BYTES = 64 * 1024;
constexpr uint64_t MAX_SPARE_BYTES = 1024 * 1024;

uint64_t whole_words(uint64_t bytes) {
  return (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t);
}

}  // namespace

Texts& texts() {
  // Never destroyed: threads may still record while the process ends.
  static Texts& instance = *new Texts;
  return instance;
}

Text Texts::intern(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  fault_at(Fault::TEXT);
  std::lock_guard<std::mutex> hold(mutex);
  std::string key(text);
  if (const Text found = known(key)) {
    return found;
  }
  if (bytes_ >= layout::MAXIMUM_TEXT_BYTES) {
    ++texts_left_out_;
    key = layout::LEFT_OUT;
  }
  return add(std::move(key));
}

Text Texts::intern_signature(std::string_view text, bool& exact) {
  std::lock_guard<std::mutex> hold(mutex);
  std::string key(text);
  exact = true;
  if (const Text found = known(key)) {
    return found;
  }
  if (signatures_ >= layout::MAXIMUM_SIGNATURES || bytes_ >= layout::MAXIMUM_TEXT_BYTES) {
    exact = false;
    ++signatures_left_out_;
    return add(layout::LEFT_OUT);
  }
  ++signatures_;
  return add(std::move(key));
}

Text Texts::known(const std::string& text) const {
  const auto found = ids_.find(text);
  return found != ids_.end() ? found->second : 0;
}

Text Texts::add(std::string text) {
  if (const Text found = known(text)) {
    return found;
  }
  if (memory_ != nullptr ? !store(text) : failure() != 0) {
    return 0;
  }
  const Text id = static_cast<Text>(order_.size() + 1);
  bytes_ += sizeof(uint32_t) + text.size();
  const auto entry = ids_.emplace(std::move(text), id).first;
  order_.push_back(&entry->first);  // nodes of an unordered_map do not move
  return id;
}

int Texts::attach(const std::string& folder) {
  std::lock_guard<std::mutex> hold(mutex);
  path_ = folder + "/" + layout::STRINGS_FILE;
  if (grow(2 * bytes_)) {  // with padding
    for (const std::string* text : order_) {
      store(*text);
    }
  }
  return failure();
}

void Texts::detach() {
  std::lock_guard<std::mutex> hold(mutex);
  if (memory_ != nullptr) {
    const uint64_t used = used_;
    abandon();
    const int gone = ::truncate(path_.c_str(), static_cast<off_t>(used));
    static_cast<void>(gone);  // no blocks to release then
  }
  failure_ = 0;
  texts_left_out_ = signatures_left_out_ = 0;
}

void Texts::abandon() {
  if (memory_ != nullptr) {
    ::munmap(memory_, size_);
  }
  memory_ = nullptr;
  used_ = size_ = 0;
}

bool Texts::store(std::string_view text) {
  const uint64_t length = whole_words(text.size());
  const uint64_t end = used_ + sizeof(uint32_t) + length;
  if (end > size_ && !grow(end)) {
    return false;
  }
  char* entry = memory_ + used_;
  std::memcpy(entry + sizeof(uint32_t), text.data(), text.size());
  // The length is written last: until then readers stop here.
  __atomic_store_n(reinterpret_cast<uint32_t*>(entry), static_cast<uint32_t>(length),
                   __ATOMIC_RELEASE);
  used_ = end;
  return true;
}

bool Texts::grow(uint64_t bytes) {
  if (failure() != 0 && !may_pass(failure())) {
    return false;
  }
  const uint64_t room = std::max(bytes, std::min(2 * size_, size_ + MAX_SPARE_BYTES));
  const uint64_t size = std::max(FIRST_BYTES, (room + PAGE - 1) / PAGE * PAGE);
  OwnFile file(path_.c_str(), O_RDWR | (memory_ == nullptr ? O_CREAT | O_EXCL : 0));
  const bool same = memory_ == nullptr || file.identity() == file_;
  char* memory = same ? file.map(size) : nullptr;
  if (memory == nullptr) {
    failure_ = same || file.error() != 0 ? file.error() : ENOENT;
    return false;
  }
  if (memory_ != nullptr) {
    ::munmap(memory_, size_);
  }
  file_ = file.identity();
  memory_ = memory;
  size_ = size;
  return true;
}

}  // namespace lanescope
