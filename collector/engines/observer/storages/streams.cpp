#include "storages/streams.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/is_pinned_ops.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <unordered_map>

#include "thread/process.h"

namespace lanescope {

namespace {

// Guarded by the process's mutex.
using Ordinals = std::unordered_map<uint64_t, uint32_t>;

Ordinals& ordinals() {
  static Ordinals& instance = *new Ordinals;
  return instance;
}

constexpr size_t MAX_STREAMS = 65536;

// The stream's handle in the device's API and in torch's trace callbacks. Only newer versions of
// torch provide it; with older ones only the default stream's handle is known.
template <typename Guard>
auto handle_of(const Guard& guard, const c10::Stream& stream, int)
    -> decltype(reinterpret_cast<uint64_t>(guard.getStreamNativeHandle(stream))) {
  return reinterpret_cast<uint64_t>(guard.getStreamNativeHandle(stream));
}

template <typename Guard>
uint64_t handle_of(const Guard&, const c10::Stream& stream, long) {
  return static_cast<uint64_t>(stream.id());
}

}  // namespace

uint32_t stream_with(uint64_t handle) {
  if (handle == 0) {
    return FIRST_STREAM;
  }
  std::lock_guard<std::mutex> hold(process().mutex);
  Ordinals& all = ordinals();
  const auto found = all.find(handle);
  if (found != all.end()) {
    return found->second;
  }
  if (all.size() >=
      MAX_STREAMS) {  // all later streams share one: they look better ordered than they are
    return FIRST_STREAM;
  }
  const auto ordinal = static_cast<uint32_t>(FIRST_STREAM + 1 + all.size());
  all.emplace(handle, ordinal);
  return ordinal;
}

void forget_streams() {
  std::lock_guard<std::mutex> hold(process().mutex);
  ordinals().clear();
}

bool is_pinned(const c10::TensorImpl& tensor) {
  const c10::DataPtr& data = tensor.unsafe_storage().data_ptr();
  if (data.get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter()) {
    return false;
  }
  try {
    auto* shared = const_cast<c10::TensorImpl*>(&tensor);
    const at::Tensor held(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(shared));
    // Straight to the kernel: no mode of the program sees it.
    const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    return at::_ops::is_pinned::redispatch(cpu, held, std::nullopt);
  } catch (...) {
    return false;
  }
}

uint32_t current_stream(Thread& thread, c10::Device device) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {  // for example of a tensor without data
    return 0;
  }
  const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
  const c10::Stream stream = guard->getStream(device);
  Thread::Stream& last = thread.stream;
  const int type = static_cast<int>(device.type()), index = stream.device_index();
  if (last.ordinal == 0 || last.run != thread.run || last.id != stream.id() ||
      last.device_type != type || last.device_index != index) {
    last = {thread.run, stream.id(), type, index, stream_with(handle_of(*guard, stream, 0))};
  }
  return last.ordinal;
}

}  // namespace lanescope
