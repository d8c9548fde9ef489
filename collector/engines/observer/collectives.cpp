#include "collectives.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/version.h>

#include <map>
#include <mutex>
#include <string_view>

#include "operators.h"
#include "process.h"
#include "signature.h"
#include "stacks.h"
#include "thread.h"

namespace lanescope {

namespace {

// Holds a call as debug information, which torch hands out as a plain pointer.
struct Holder : c10::DebugInfoBase {
  explicit Holder(std::shared_ptr<Call> of) : call(std::move(of)) {}
  std::shared_ptr<Call> call;
};

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
constexpr std::string_view INFO_NAME = "LANESCOPE_COLLECTIVE";
const c10::DebugInfoKind INFO(&INFO_NAME);
#else
const c10::DebugInfoKind INFO = c10::DebugInfoKind::TEST_INFO_2;  // there is no kind for others
#endif

// As sources/collectives.py names them.
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
    {"recv_any_source_", "recv"},
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

int64_t next_sequence(Text group) {
  static std::map<Text, int64_t>& counts = *new std::map<Text, int64_t>;
  static uint64_t of_run = 0;
  Process& here = process();
  std::lock_guard<std::mutex> hold(here.mutex);
  if (of_run != moment.run) {
    of_run = moment.run;
    counts.clear();
  }
  return counts[group]++;
}

int64_t bytes_of(const c10::TensorImpl& tensor) {
  auto bytes = static_cast<int64_t>(tensor.dtype().itemsize());
  for (const int64_t size : plain_sizes(tensor)) {
    bytes *= size;
  }
  return bytes;
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
  // _c10d_functional_autograd::* call their namesakes without autograd, which are counted.
  if (space != "c10d" && space != "_c10d_functional") {
    return nullptr;
  }
  const std::string_view op = full.substr(colons + 2);
  if (op == "wait_tensor") {
    return nullptr;
  }
  CollectivePlan plan{0, false, -1, -1, -1, -1};
  bool from_input = false;
  const auto& arguments = schema.arguments();
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    const std::string& name = arguments[i].name();
    if (plan.group < 0 && (name == "process_group" || name == "group_name")) {
      plan.group = i;
    } else if (plan.peer < 0 && space == "c10d" && (name == "dst" || name == "src")) {
      plan.peer = i;
    } else if (plan.asynchronous < 0 && name == "async_op") {
      plan.asynchronous = i;
    } else if (holds_tensors(arguments[i].type())) {
      const bool input = name.find("input") != std::string::npos;
      if (plan.tensors < 0 || (input && !from_input)) {
        plan.tensors = i;
        from_input = input;
      }
    }
  }
  if (plan.group < 0 || plan.tensors < 0) {
    return nullptr;
  }
  const std::string shown = name_of(op);
  plan.barrier = shown == "barrier";
  plan.name = texts().intern(shown);
  return std::make_shared<const CollectivePlan>(plan);
}

void mark_accesses(std::vector<Argument>& arguments, const c10::FunctionSchema& schema) {
  const std::string& full = schema.name();
  const bool in_place = full.back() == '_' && full != "c10d::send";
  for (Argument& argument : arguments) {
    const std::string& name = schema.arguments()[argument.position].name();
    const bool input = name.find("input") != std::string::npos;
    const bool output = name.find("output") != std::string::npos;
    argument.writes = argument.writes || output || (in_place && !input);
    argument.reads = !output && name != "barrier";
  }
}

void begin_call(Thread& thread, const CollectivePlan& plan,
                c10::ArrayRef<const c10::IValue> inputs) {
  auto call = std::make_shared<Call>();
  const auto group = group_of(inputs[plan.group]);
  const std::string& group_name = group->getGroupName();
  std::string described = group_name + '\t' + std::to_string(group->getSize()) + '\t';
  if (plan.peer >= 0) {
    described += std::to_string(inputs[plan.peer].toInt());
  }
  call->name = plan.name;
  call->group = texts().intern(group_name);
  call->group_text = texts().intern(described);
  call->sequence = next_sequence(call->group);
  if (plan.asynchronous >= 0) {
    call->asynchronous = inputs[plan.asynchronous].toBool();
  }
  Signature signature;
  each_tensor(inputs[plan.tensors], [&](const c10::TensorImpl& tensor) {
    signature.add(tensor);
    call->bytes += bytes_of(tensor);
    call->on_cpu = device_of(tensor).is_cpu();
  });
  call->signature = signature.text(thread, [&](Spelling& spelling) {
    each_tensor(inputs[plan.tensors],
                [&](const c10::TensorImpl& tensor) { spelling.add(tensor); });
  });
  if (plan.barrier) {
    call->bytes = 0;
  }
  call->stack = moment.collective_stacks ? capture_stack() : 0;
  c10::ThreadLocalDebugInfo::_push(INFO, std::make_shared<Holder>(call));
  thread.call = std::move(call);
}

void end_call(Thread& thread, int64_t start, int64_t end, int32_t step, Text module, Text phase) {
  const std::shared_ptr<Call> call = std::move(thread.call);
  thread.call.reset();
  if (!call) {
    return;
  }
  Record record{};
  record.kind = layout::KIND_COLLECTIVE;
  record.scope = call->asynchronous ? 1 : 0;
  record.name = call->name;
  record.start = start;
  record.end = end;
  record.sequence = call->sequence;
  record.step = step;
  record.module = module;
  record.signature = call->signature;
  record.stack = call->stack;
  record.phase = phase;
  record.aux = call->group_text;
  record.extra = call->bytes;
  thread.append(record);
  c10::ThreadLocalDebugInfo::_pop(INFO);  // last: it throws where others left theirs on top
}

void drop_call(Thread& thread) noexcept {
  if (!thread.call) {
    return;
  }
  thread.call.reset();
  try {
    c10::ThreadLocalDebugInfo::_pop(INFO);
  } catch (...) {  // others left theirs on top
    note_error();
  }
}

std::shared_ptr<Call> call_worked_for() {
  auto* holder = dynamic_cast<Holder*>(c10::ThreadLocalDebugInfo::get(INFO));
  return holder != nullptr ? holder->call : nullptr;
}

void complete(Thread& thread, const Call& call, int64_t end) {
  // A device's work counts as done once it is enqueued: that is no completion.
  if (!call.on_cpu) {
    return;
  }
  Record record{};
  record.kind = layout::KIND_COLLECTIVE_END;
  record.end = end;
  record.sequence = call.sequence;
  record.aux = call.group;
  thread.append(record);
}

}  // namespace lanescope
