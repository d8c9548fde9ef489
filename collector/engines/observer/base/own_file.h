// A file of the recorder's own, open for a moment only.
//
// The program may close any descriptor, and its number then is that of a file of the program's. So
// no descriptor is kept, and each is made sure of before it is written to or closed.
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

// Whether what failed may succeed later: the program has as many files open as it may.
inline bool may_pass(int error) {
  return error == EMFILE || error == ENFILE;
}

// May be used in a signal's handler.
class OwnFile {
 public:
  OwnFile(const char* path, int flags);
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile();

  // The errno of what failed first, or 0.
  int error() const { return error_; }

  const FileIdentity& identity() const { return identity_; }

  void write(const void* data, size_t bytes);
  ssize_t read(void* into, size_t bytes);
  int64_t size();

  // The first `bytes` of the file in memory, shared, with their blocks reserved: writing into a
  // hole of a full disk would raise SIGBUS in the program. Null where that cannot be.
  char* map(uint64_t bytes);

  // Have that very number; false where it is taken, or past the limit.
  bool move_to(int number);

 private:
  bool ours(int64_t* bytes = nullptr);

  int number_;
  int error_ = 0;
  FileIdentity identity_;
};

}  // namespace lanescope
