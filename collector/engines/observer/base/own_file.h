// A file of the recorder, opened for a short time only.
//
// The program may close any descriptor and open another file under the same number. So no
// descriptor is kept, and each is checked before it is written to or closed.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace lanescope {

struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;

  bool operator==(const FileIdentity&) const = default;
};

// True if a later try may succeed: the program has reached its limit of open files.
inline bool may_pass(int error) {
  return error == EMFILE || error == ENFILE;
}

// Safe to use in a signal handler.
class OwnFile {
 public:
  OwnFile(const char* path, int flags);
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile();

  // The errno of the first failure, or 0.
  int error() const { return error_; }

  const FileIdentity& identity() const { return identity_; }

  void write(const void* data, size_t bytes);
  ssize_t read(void* into, size_t bytes);
  int64_t size();

  // Maps the first `bytes` of the file, shared, with their blocks reserved: writing into a hole on
  // a full disk would raise SIGBUS in the program. Null on failure.
  char* map(uint64_t bytes);

  // Moves the file to this descriptor number. False if it is taken or past the limit.
  bool move_to(int number);

 private:
  bool ours(int64_t* bytes = nullptr);

  int number_;
  int error_ = 0;
  FileIdentity identity_;
};

}  // namespace lanescope
