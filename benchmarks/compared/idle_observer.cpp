// The least that an observer of torch's operators can do: be called, with inputs and outputs; and
// one that in each call lets some time pass.
#include <ATen/record_function.h>

#include <chrono>

namespace {

std::chrono::nanoseconds wait{0};
at::CallbackHandle handle;

void pass() {
  if (wait.count() > 0) {
    const auto until = std::chrono::steady_clock::now() + wait;
    while (std::chrono::steady_clock::now() < until) {
    }
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
  pass();
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext*) {
  pass();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void start(int64_t wait_ns, bool user_scopes) {
  wait = std::chrono::nanoseconds(wait_ns);
  std::unordered_set<at::RecordScope> scopes{at::RecordScope::FUNCTION,
                                             at::RecordScope::BACKWARD_FUNCTION};
  if (user_scopes) {  // what a backend's thread does for a collective is of this scope
    scopes.insert(at::RecordScope::USER_SCOPE);
  }
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes(scopes));
}

extern "C" __attribute__((visibility("default"))) void stop() {
  at::removeCallback(handle);
}
