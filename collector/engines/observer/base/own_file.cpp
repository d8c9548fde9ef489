#include "base/own_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace lanescope {

namespace {

// Blocks SIGXFSZ during its lifetime: growing a file past RLIMIT_FSIZE then only fails the call,
// and the program gets no signal.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    ::sigpending(&pending);
    theirs_ = ::sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoSizeSignal() {
    const int error = errno;
    const timespec at_once{};
    if (!theirs_) {
      ::sigtimedwait(&signal_, nullptr, &at_once);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t signal_, before_;
  bool theirs_;
};

}  // namespace

OwnFile::OwnFile(const char* path, int flags) : number_(::open(path, flags | O_CLOEXEC, 0644)) {
  struct stat found{};
  if (number_ < 0 || ::fstat(number_, &found) != 0) {
    error_ = errno;
  }
  identity_ = {found.st_dev, found.st_ino};
}

OwnFile::~OwnFile() {
  if (ours()) {
    ::close(number_);
  }
}

bool OwnFile::ours(int64_t* bytes) {
  struct stat found{};
  if (number_ < 0 || ::fstat(number_, &found) != 0 ||
      FileIdentity{found.st_dev, found.st_ino} != identity_) {
    if (error_ == 0) {
      error_ = EBADF;
    }
    return false;
  }
  if (bytes != nullptr) {
    *bytes = found.st_size;
  }
  return true;
}

void OwnFile::write(const void* data, size_t bytes) {
  if (error_ != 0 || !ours()) {
    return;
  }
  const NoSizeSignal quiet;
  const ssize_t written = ::write(number_, data, bytes);
  if (written != static_cast<ssize_t>(bytes)) {
    error_ = written < 0 ? errno : ENOSPC;
  }
}

ssize_t OwnFile::read(void* into, size_t bytes) {
  return error_ == 0 && ours() ? ::pread(number_, into, bytes, 0) : -1;
}

int64_t OwnFile::size() {
  int64_t bytes = 0;
  return error_ == 0 && ours(&bytes) ? bytes : 0;
}

char* OwnFile::map(uint64_t bytes) {
  if (error_ != 0 || !ours()) {
    return nullptr;
  }
  {
    const NoSizeSignal quiet;
    error_ = ::posix_fallocate(number_, 0, static_cast<off_t>(bytes));
  }
  if (error_ != 0 || !ours()) {
    return nullptr;
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, number_, 0);
  if (memory == MAP_FAILED) {
    error_ = errno;
    return nullptr;
  }
  return static_cast<char*>(memory);
}

bool OwnFile::move_to(int number) {
  if (error_ != 0 || !ours()) {
    return false;
  }
  const int other = ::fcntl(number_, F_DUPFD_CLOEXEC, number);
  if (other != number) {
    if (other >= 0) {
      ::close(other);
    }
    return false;
  }
  ::close(number_);
  number_ = other;
  return true;
}

}  // namespace lanescope
