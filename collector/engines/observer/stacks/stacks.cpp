#include "stacks/stacks.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/fault_injection.h"
#include "stacks/frame_hash.h"
#include "thread/thread.h"

namespace lanescope {

namespace {

// The Python functions that capturing needs, looked up in the process: this needs no headers, and
// one build serves every version.
struct PythonObject;
struct PythonFrame;
using ssize = std::ptrdiff_t;

struct Python {
  void* (*this_thread_state)();
  int (*ensure)();
  void (*release)(int);
  int (*finalizing)();
  PythonFrame* (*current_frame)();
  PythonFrame* (*back)(PythonFrame*);
  PythonObject* (*code)(PythonFrame*);
  int (*line)(PythonFrame*);
  int (*instruction)(PythonFrame*);  // null before 3.11
  PythonObject* (*attribute)(PythonObject*, const char*);
  const char* (*utf8)(PythonObject*, ssize*);
  void (*increase)(PythonObject*);
  void (*decrease)(PythonObject*);
  void (*fetch_error)(PythonObject**, PythonObject**, PythonObject**);
  void (*restore_error)(PythonObject*, PythonObject*, PythonObject*);
  bool usable = false;

  Python() {
    usable = find(this_thread_state, "PyGILState_GetThisThreadState") &&
             find(ensure, "PyGILState_Ensure") && find(release, "PyGILState_Release") &&
             find(current_frame, "PyEval_GetFrame") && find(back, "PyFrame_GetBack") &&
             find(code, "PyFrame_GetCode") && find(line, "PyFrame_GetLineNumber") &&
             find(attribute, "PyObject_GetAttrString") && find(utf8, "PyUnicode_AsUTF8AndSize") &&
             find(increase, "Py_IncRef") && find(decrease, "Py_DecRef") &&
             find(fetch_error, "PyErr_Fetch") && find(restore_error, "PyErr_Restore") &&
             (find(finalizing, "Py_IsFinalizing") || find(finalizing, "_Py_IsFinalizing"));
    find(instruction, "PyFrame_GetLasti");
  }

  template <typename Function>
  static bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

const Python& python() {
  static const Python& instance = *new Python;
  return instance;
}

struct Code {
  bool kept;
  std::string file, function;
};

// Guarded by the interpreter's lock.
struct State {
  StackSettings settings;
  std::unordered_map<PythonObject*, Code>
      codes;  // each holds a reference, so that no address is reused
  std::unordered_map<std::string, Text> seen;  // raw frames -> text
  size_t walks = 0;                            // in progress, on all threads
};

// Distinct ones remembered; then all are forgotten.
constexpr size_t MAX_STACKS = 100'000;
constexpr size_t MAX_CODES = 20'000;  // a program may compile functions as long as it runs

State& state() {
  static State& instance = *new State;
  return instance;
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return !prefix.empty() && text.compare(0, prefix.size(), prefix) == 0;
}

bool is_library(const StackSettings& settings, const std::string& file) {
  if (starts_with(file, "<frozen")) {
    return true;
  }
  for (const std::string& folder : settings.inside) {
    if (starts_with(file, folder)) {
      return true;
    }
  }
  if (!starts_with(file, settings.standard)) {
    return false;
  }
  for (const std::string& folder : settings.packages) {
    if (starts_with(file, folder)) {
      return false;
    }
  }
  return true;
}

std::string text_of(const Python& py, PythonObject* code, const char* name) {
  std::string text;
  if (PythonObject* value = py.attribute(code, name)) {
    ssize size = 0;
    if (const char* data = py.utf8(value, &size)) {
      text.assign(data, static_cast<size_t>(size));
    }
    py.decrease(value);
  }
  return text;
}

const Code& describe(const Python& py, State& all, PythonObject* code) {
  const auto found = all.codes.find(code);
  if (found != all.codes.end()) {
    return found->second;
  }
  Code made;
  made.file = text_of(py, code, "co_filename");
  made.kept = !is_library(all.settings, made.file);
  if (made.kept) {
    made.function = text_of(py, code, "co_name");
  }
  py.increase(code);
  return all.codes.emplace(code, std::move(made)).first->second;
}

struct Raw {
  PythonObject* code;
  int64_t position;  // instruction, or line where Python does not provide it
};

// Lets code objects of the program go. Not within a walk, which may run a destructor of the program
// and, in that, walk again.
void forget_codes(const Python& py, State& all) {
  if (all.codes.size() < MAX_CODES || all.walks != 0) {
    return;
  }
  const auto codes = std::exchange(all.codes, {});
  all.seen.clear();
  forget_raw_stacks();
  for (const auto& [code, _] : codes) {
    py.decrease(code);
  }
}

// A walk's owned references, released also after an exception: a leaked frame keeps the program's
// tensors alive.
struct Walk {
  const Python& py;
  State& all;
  std::vector<PythonFrame*> frames;

  Walk(const Python& python, State& state) : py(python), all(state) { ++all.walks; }
  Walk(const Walk&) = delete;
  ~Walk() {
    --all.walks;
    for (PythonFrame* frame : frames) {
      py.decrease(reinterpret_cast<PythonObject*>(frame));
    }
  }
};

Text walk(const Python& py, State& all) {
  std::vector<Raw> frames;
  std::vector<PythonFrame*> kept;
  std::string text;
  // The first frame is borrowed, the others are owned.
  PythonFrame* frame = py.current_frame();
  if (frame == nullptr) {
    return 0;
  }
  py.increase(reinterpret_cast<PythonObject*>(frame));
  Walk owned(py, all);
  while (frame != nullptr && frames.size() < all.settings.depth) {
    owned.frames.push_back(frame);
    fault_at(Fault::STACK);
    PythonObject* code = py.code(frame);
    const bool keep = describe(py, all, code).kept;
    py.decrease(code);  // `codes` holds one
    PythonFrame* outer = py.back(frame);
    if (keep) {
      frames.push_back({code, py.instruction ? py.instruction(frame) : py.line(frame)});
      kept.push_back(frame);
    }
    frame = outer;
  }
  if (frame != nullptr) {
    owned.frames.push_back(frame);
  }
  Text result = 0;
  if (!frames.empty()) {
    const std::string key(reinterpret_cast<const char*>(frames.data()),
                          frames.size() * sizeof(Raw));
    const auto found = all.seen.find(key);
    if (found != all.seen.end()) {
      result = found->second;
    } else {
      for (size_t i = 0; i < frames.size(); ++i) {
        const Code& code = all.codes.at(frames[i].code);
        text += i == 0 ? "" : "\n";
        text += code.file + '\t' + std::to_string(py.line(kept[i])) + '\t' + code.function;
      }
      if (all.seen.size() >= MAX_STACKS) {
        all.seen.clear();
      }
      result = texts().intern(text);
      all.seen.emplace(key, result);
    }
  }
  return result;
}

}  // namespace

void set_stack_settings(StackSettings settings) {
  state().settings = std::move(settings);
}

Text capture_stack() {
  const Python& py = python();
  // A thread unknown to Python has no Python stack. Taking the lock while the interpreter shuts
  // down would end this thread.
  if (!py.usable || py.finalizing() != 0 || py.this_thread_state() == nullptr) {
    return 0;
  }
  const int held = py.ensure();
  PythonObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  py.fetch_error(&type, &value, &traceback);
  Text text = 0;
  try {
    forget_codes(py, state());
    text = walk(py, state());
  } catch (...) {
    note_error();
  }
  py.restore_error(type, value, traceback);
  py.release(held);
  return text;
}

}  // namespace lanescope
