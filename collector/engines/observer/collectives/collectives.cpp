#include "collectives/collectives.h"

#include <torch/version.h>

#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "numerics/signature.h"
#include "stacks/stacks.h"
#include "thread/frames.h"
#include "thread/process.h"
#include "thread/thread.h"

namespace lanescope {

namespace {

// Holds a call as debug information, which torch returns as a plain pointer.
struct Holder : c10::DebugInfoBase {
  explicit Holder(std::shared_ptr<Call> of) : call(std::move(of)) {}
  std::shared_ptr<Call> call;
};

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
constexpr std::string_view INFO_NAME = "LANESCOPE_COLLECTIVE";
const c10::DebugInfoKind INFO(&INFO_NAME);
#else
const c10::DebugInfoKind INFO =
    c10::DebugInfoKind::TEST_INFO_2;  // older versions have no kind for extensions
#endif

// As hooks/collectives/collectives.py names them.
const std::map<std::string_view, std::string_view> NAMES = {
    {"_allgather_base_", "all_gather_into_tensor"},
    {"_reduce_scatter_base_", "reduce_scatter_tensor"},
    {"allgather_", "all_gather"},
    {"allgather_coalesced_", "all_gather_coalesced"},
    {"allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced"},
    {"allreduce_", "all_reduce"},
    {"allreduce_coalesced_", "all_reduce_coalesced"},
    {"alltoall_", "all_to_all"},
    {"alltoall_base_", "all_to_all_single"},
    {"isend", "send"},
    {"irecv", "recv"},
    {"recv_any_source_", "recv"},
    {"reduce_scatter_tensor_out", "reduce_scatter_tensor"},
    {"all_gather_into_tensor_out", "all_gather_into_tensor"},
};

std::string name_of(std::string_view op) {
  const auto found = NAMES.find(op);
  if (found != NAMES.end()) {
    return std::string(found->second);
  }
  while (!op.empty() && op.back() == '_') {
    op.remove_suffix(1);
  }
  return std::string(op);
}

// Returns the call's sequence number among the collectives of its group, or among the sends (or
// recvs) of the group with one peer. The same on all ranks that take part.
int64_t next_sequence(Text counted_by, Text name) {
  static std::map<std::pair<Text, Text>, int64_t>& counts =
      *new std::map<std::pair<Text, Text>, int64_t>;
  static uint64_t of_run = 0;
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  if (of_run != recording.run) {
    of_run = recording.run;
    counts.clear();
  }
  return counts[{counted_by, name}]++;
}

std::string reduction(const c10::IValue& value) {
  if (value.isString()) {
    return value.toStringRef();
  }
  static constexpr std::array NAMES = {"sum",  "avg", "product", "min",       "max",
                                       "band", "bor", "bxor",    "premul_sum"};
  const auto op = static_cast<size_t>(value.toCustomClass<c10d::ReduceOp>()->op_);
  return op < NAMES.size() ? NAMES[op] : "";
}

int64_t elements_of(const c10::TensorImpl& tensor) {
  int64_t elements = 1;
  for (const int64_t size : plain_sizes(tensor)) {
    elements *= size;
  }
  return elements;
}

int64_t bytes_of(const c10::TensorImpl& tensor) {
  return elements_of(tensor) * static_cast<int64_t>(tensor.dtype().itemsize());
}

// Returns the sizes of the parts of an all-to-all: rows, or elements of each tensor; empty: even.
std::string sizes_of(const c10::IValue& value) {
  std::string sizes;
  const auto add = [&sizes](int64_t size) {
    sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  };
  if (value.isIntList()) {
    for (const int64_t size : value.toIntVector()) {
      add(size);
    }
  } else if (value.isTensorList()) {
    each_tensor(value, [&](const c10::TensorImpl& tensor) { add(elements_of(tensor)); });
  }
  return sizes;
}

c10::intrusive_ptr<c10d::ProcessGroup> group_of(const c10::IValue& value) {
  return value.isString() ? c10d::resolve_process_group(value.toStringRef())
                          : value.toCustomClass<c10d::ProcessGroup>();
}

}  // namespace

std::shared_ptr<const CollectivePlan> plan_collective(const c10::FunctionSchema& schema) {
  const std::string_view full = schema.name();
  const size_t colons = full.find("::");
  const std::string_view space = full.substr(0, colons);
  // _c10d_functional_autograd::* call _c10d_functional::*, which are counted.
  if (space != "c10d" && space != "_c10d_functional") {
    return nullptr;
  }
  const std::string_view op = full.substr(colons + 2);
  if (op == "wait_tensor") {
    return nullptr;
  }
  const std::string shown = name_of(op);
  CollectivePlan plan{};
  plan.paired = shown == "send" || shown == "recv" || shown == "batch_p2p_ops";
  plan.barrier = shown == "barrier" || shown == "monitored_barrier";
  plan.blocking = shown == "monitored_barrier";
  // On all ranks scatter writes a tensor; only the root has its inputs.
  const char* side = shown == "scatter" ? "output" : "input";
  bool from_side = false;
  const auto& arguments = schema.arguments();
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    const std::string& name = arguments[i].name();
    if (plan.group < 0 && (name == "process_group" || name == "group_name")) {
      plan.group = i;
    } else if (name == "dst" || name == "src" || name == "root_rank") {
      (plan.paired ? plan.peer : plan.root) = i;
    } else if (name == "reduce_op") {
      plan.reduce_op = i;
    } else if (plan.asynchronous < 0 && name == "async_op") {
      plan.asynchronous = i;
    } else if (holds_tensors(arguments[i].type())) {
      const bool wanted = name.find(side) != std::string::npos;
      if (plan.tensors < 0 || (wanted && !from_side)) {
        plan.tensors = i;
        from_side = wanted;
      }
    }
  }
  if (plan.group < 0 || plan.tensors < 0) {
    return nullptr;
  }
  const std::string_view parts = shown == "all_to_all_single" ? "_split_sizes" : "_tensors";
  for (int i = 0; i < static_cast<int>(arguments.size()) && shown.rfind("all_to_all", 0) == 0;
       ++i) {
    const std::string& name = arguments[i].name();
    if (name == "input" + std::string(parts)) {
      plan.sent = i;
    } else if (name == "output" + std::string(parts)) {
      plan.received = i;
    }
  }
  plan.name = texts().intern(shown);
  return std::make_shared<const CollectivePlan>(plan);
}

ArgumentUse use_of(const c10::FunctionSchema& schema, size_t position) {
  const std::string& full = schema.name();
  const std::string& name = schema.arguments()[position].name();
  const bool in_place = full.back() == '_' && full != "c10d::send";
  const bool input = name.find("input") != std::string::npos;
  const bool output = name.find("output") != std::string::npos;
  return {!output && name != "barrier", output || (in_place && !input)};
}

void begin_call(Thread& thread, const CollectivePlan& plan,
                c10::ArrayRef<const c10::IValue> inputs) {
  auto call = std::make_shared<Call>();
  const auto group = group_of(inputs[plan.group]);
  const std::string& group_name = group->getGroupName();
  std::string described = group_name + '\t' + std::to_string(group->getSize());
  for (const int position : {plan.peer, plan.root}) {
    described += '\t';
    if (position >= 0) {
      described += std::to_string(inputs[position].toInt());
    }
  }
  described += '\t';
  if (plan.reduce_op >= 0) {
    described += reduction(inputs[plan.reduce_op]);
  }
  if (plan.sent >= 0 && plan.received >= 0) {
    const std::string sent = sizes_of(inputs[plan.sent]);
    const std::string received = sizes_of(inputs[plan.received]);
    described += sent.empty() && received.empty() ? "" : '\t' + sent + '>' + received;
  }
  call->name = plan.name;
  call->group_text = texts().intern(described);
  call->sequence = plan.paired ? next_sequence(call->group_text, plan.name)
                               : next_sequence(texts().intern(group_name), 0);
  call->blocking = plan.blocking;
  if (plan.blocking) {
    call->asynchronous = false;
  } else if (plan.asynchronous >= 0) {
    call->asynchronous = inputs[plan.asynchronous].toBool();
  }
  Signature signature;
  each_tensor(inputs[plan.tensors], [&](const c10::TensorImpl& tensor) {
    signature.add(tensor);
    call->bytes += bytes_of(tensor);
    call->on_cpu = device_of(tensor).is_cpu();
  });
  call->signature = signature.text(thread, [&](Spelling& spelling) {
    each_tensor(inputs[plan.tensors], [&](const c10::TensorImpl& tensor) { spelling.add(tensor); });
  });
  if (plan.barrier) {
    call->bytes = 0;
  }
  call->runnable = thread.runnable.since(thread.clock.now());
  call->stack = recording.collective_stacks ? capture_stack() : 0;
  c10::ThreadLocalDebugInfo::_push(INFO, std::make_shared<Holder>(call));
  thread.call = std::move(call);
}

void open_call(Thread& thread, const Frame& frame) {
  Call& call = *thread.call;
  call.open_level = thread.push_open(layout::KIND_COLLECTIVE, call.asynchronous ? 1 : 0, 0,
                                     call.name, frame.start, frame.step, frame.module, frame.phase);
  if (Record* entry = thread.journal.open_entry(call.open_level)) {
    entry->sequence = call.sequence;
    entry->signature = call.signature;
    entry->stack = call.stack;
    entry->aux = call.group_text;
    entry->extra = call.bytes;
  }
}

void forget_call(Thread& thread) noexcept {
  const std::shared_ptr<Call> call = std::move(thread.call);
  thread.call.reset();
  if (!call) {
    return;
  }
  if (call->open_level != Call::NOT_OPEN) {
    Record* entry = thread.journal.open_entry(call->open_level);
    thread.pop_open(call->open_level);
    if (entry != nullptr) {  // other entries rely on these defaults
      entry->sequence = -1;
      entry->signature = entry->stack = entry->aux = 0;
      entry->extra = 0;
    }
  }
  try {
    c10::ThreadLocalDebugInfo::_pop(INFO);
  } catch (...) {  // another library left its own on top
    thread.counters.add(Counters::ERRORS);
  }
}

void end_call(Thread& thread, const Frame& frame, int64_t end) {
  const std::shared_ptr<Call> call = thread.call;
  if (!call) {
    return;
  }
  forget_call(thread);
  Record record{};
  record.kind = layout::KIND_COLLECTIVE;
  record.scope = call->asynchronous ? 1 : 0;
  record.depth = call->runnable;
  record.name = call->name;
  record.start = frame.start;
  record.end = end;
  record.sequence = call->sequence;
  record.step = frame.step;
  record.module = frame.module;
  record.signature = call->signature;
  record.stack = call->stack;
  record.phase = frame.phase;
  record.aux = call->group_text;
  record.extra = call->bytes;
  thread.append(record);
  if (call->blocking) {
    call->blocking = false;
    complete(thread, *call, end);
  }
}

void drop_call(Thread& thread) noexcept {
  if (!thread.call) {
    return;
  }
  thread.call.reset();
  try {
    c10::ThreadLocalDebugInfo::_pop(INFO);
  } catch (...) {  // another library left its own on top
    note_error();
  }
}

std::shared_ptr<Call> call_worked_for() {
  auto* holder = dynamic_cast<Holder*>(c10::ThreadLocalDebugInfo::get(INFO));
  return holder != nullptr ? holder->call : nullptr;
}

void complete(Thread& thread, const Call& call, int64_t end) {
  // A device's work ends here when it is enqueued, which is not its completion. A blocking call is
  // complete only when it returns.
  if (!call.on_cpu || call.blocking) {
    return;
  }
  Record record{};
  record.kind = layout::KIND_COLLECTIVE_END;
  record.name = call.name;
  record.end = end;
  record.sequence = call.sequence;
  record.aux = call.group_text;
  thread.append(record);
}

}  // namespace lanescope
