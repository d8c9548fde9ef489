#include "texts.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "fault.h"
#include "layout.h"

namespace lanescope {

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
  if (failure() != 0) {
    return 0;
  }
  if (file_ >= 0) {
    if (const int error = write(text)) {
      failure_ = error;
      return 0;
    }
  }
  const Text id = static_cast<Text>(order_.size() + 1);
  bytes_ += sizeof(uint32_t) + text.size();
  const auto entry = ids_.emplace(std::move(text), id).first;
  order_.push_back(&entry->first);  // nodes of an unordered_map do not move
  return id;
}

int Texts::attach(const std::string& folder) {
  std::lock_guard<std::mutex> hold(mutex);
  const std::string path = folder + "/" + layout::STRINGS_FILE;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) {
    failure_ = errno;
    return failure();
  }
  for (const std::string* text : order_) {
    if (const int error = write(*text)) {
      failure_ = error;
      return error;
    }
  }
  return 0;
}

void Texts::detach() {
  std::lock_guard<std::mutex> hold(mutex);
  if (file_ >= 0) {
    ::close(file_);
  }
  file_ = -1;
  failure_ = 0;
  texts_left_out_ = signatures_left_out_ = 0;
}

int Texts::write(std::string_view text) {
  // One write per text: what a reader finds at the end is whole or cut off, never mixed.
  const uint32_t length = static_cast<uint32_t>(text.size());
  std::string data(sizeof length + text.size(), '\0');
  std::memcpy(&data[0], &length, sizeof length);
  std::memcpy(&data[sizeof length], text.data(), text.size());
  const ssize_t written = ::write(file_, data.data(), data.size());
  if (written < 0) {
    return errno;
  }
  return static_cast<size_t>(written) == data.size() ? 0 : ENOSPC;
}

}  // namespace lanescope
