#include "thread/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/own_file.h"
#include "base/recording_state.h"
#include "journal/segment_ring.h"
#include "journal/string_table.h"
#include "layout.h"
#include "thread/thread.h"

namespace lanescope {

constinit RecordingState recording;

namespace {

void before_fork() {
  process().mutex.lock();
  texts().mutex.lock();
  ring().mutex.lock();
}

void after_fork_in_parent() {
  ring().mutex.unlock();
  texts().mutex.unlock();
  process().mutex.unlock();
}

void after_fork_in_child() {
  Process& here = process();
  recording.run = 0;  // until Python sets where this process records
  here.pid = ::getpid();
  here.threads.clear();  // they do not exist in the child
  texts().abandon();
  ring().mutex.unlock();
  texts().mutex.unlock();
  here.mutex.unlock();
}

// The run's folder must exist: if it was deleted, or chroot made it unreachable, it must not be
// created again.
int make_folder(const std::string& path) {
  const std::string journal = path.substr(0, path.rfind('/'));
  ::mkdir(journal.c_str(), 0777);  // a failure shows below
  return ::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST ? 0 : errno;
}

// Replaces a file atomically: readers see the old or the new one.
int replace_file(const std::string& folder, const std::string& name, const std::string& text) {
  const std::string temporary = folder + "/." + name + "." + std::to_string(::getpid());
  OwnFile file(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  file.write(text.data(), text.size());
  int error = file.error();
  if (error == 0 && ::rename(temporary.c_str(), (folder + "/" + name).c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
  }
  return error;
}

}  // namespace

Process& process() {
  // Never destroyed: threads may still record while the process ends.
  static Process& instance = *[] {
    auto* made = new Process;
    made->pid = ::getpid();
    ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return made;
  }();
  return instance;
}

void Process::begin(std::string in_folder, uint64_t keep_last) {
  texts().detach();
  std::lock_guard<std::mutex> hold(mutex);
  ring().begin(keep_last);
  kept.begin("", {});  // its file is created with the first record
  folder = std::move(in_folder);
  description.clear();
  opened = false;
  failure = 0;
  next_ordinal = layout::MAIN_ORDINAL + 1;
  for (int reason = 0; reason < Counters::REASONS; ++reason) {
    gone.counts[reason] = 0;
    for (Thread* thread : threads) {
      thread->counters.counts[reason] = 0;
    }
  }
  recording.run = ++runs;
}

void Process::end() {
  std::lock_guard<std::mutex> hold(mutex);
  recording.run = 0;
  kept.close();
}

void Process::keep(const Record& record) {
  std::lock_guard<std::mutex> hold(mutex);
  if (recording.run == 0) {
    return;
  }
  open();
  if (kept.identity().ordinal != layout::KEPT_ORDINAL) {
    Identity identity;
    identity.pid = pid;
    identity.kind = layout::THREAD_NATIVE;
    identity.ordinal = layout::KEPT_ORDINAL;
    kept.begin(folder, identity, true);
  }
  const uint64_t before = kept.dropped();
  kept.append(record);
  gone.add(Counters::DROPPED, kept.dropped() - before);
}

void Process::describe(std::string text) {
  std::lock_guard<std::mutex> hold(mutex);
  description = std::move(text);
  if (opened) {
    if (const int error = replace_file(folder, layout::PROCESS_FILE, description)) {
      failure = error;
    }
  }
}

void Process::open() {
  if (opened) {
    return;
  }
  opened = true;
  int error = make_folder(folder);
  if (error == 0) {
    error = texts().attach(folder);
  }
  if (error == 0) {
    error = replace_file(folder, layout::PROCESS_FILE, description);
  }
  failure = error;
}

void Process::count(uint64_t (&into)[Counters::REASONS]) {
  std::lock_guard<std::mutex> hold(mutex);
  for (int reason = 0; reason < Counters::REASONS; ++reason) {
    into[reason] = gone.get(reason);
    for (const Thread* thread : threads) {
      into[reason] += thread->counters.get(reason);
    }
  }
  into[Counters::OVERWRITTEN] = ring().overwritten();
  into[Counters::SIGNATURES] = texts().signatures_left_out();
  into[Counters::TEXTS] = texts().texts_left_out();
}

}  // namespace lanescope
