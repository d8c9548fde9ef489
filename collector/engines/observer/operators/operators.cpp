#include "operators/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fnmatch.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "collectives/collectives.h"
#include "numerics/signature.h"
#include "operators/tensor_capture.h"
#include "thread/process.h"

namespace lanescope {

namespace {

// Guarded by the process's mutex, which is held over a fork.
struct Registry {
  std::unordered_map<std::string, const Operator*> operators;  // never freed: threads point to them
  uint32_t version = 0;

  // Drops all operators if torch has deregistered one since: it may register another of that name.
  std::unordered_map<std::string, const Operator*>& current() {
    const uint32_t now = recording.taken_away.load(std::memory_order_acquire);
    if (version != now) {
      operators.clear();
      version = now;
    }
    return operators;
  }
};

Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

// torch calls it with its lock held before it removes an operator.
struct Listener : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override {
    recording.taken_away.fetch_add(1, std::memory_order_release);
  }
};

constexpr char ENGINE_SCOPE[] = "autograd::engine::evaluate_function";
constexpr char COMPILED_SCOPE[] = "Torch-Compiled Region";  // followed by the frame's number

// In place by their schema, but they change only a tensor's metadata: no element is written.
constexpr std::string_view UNTOUCHING[] = {
    "aten::_coalesced_", "aten::as_strided_",    "aten::detach_",     "aten::record_stream",
    "aten::rename_",     "aten::requires_grad_", "aten::retain_grad", "aten::set_",
    "aten::set_data",    "aten::squeeze_",       "aten::swapaxes_",   "aten::swapdims_",
    "aten::t_",          "aten::transpose_",     "aten::unsqueeze_",
};

// Each way to write a moving average has one that gets its weight as a number.
constexpr std::string_view BLENDS[] = {
    "aten::_foreach_add_", "aten::_foreach_lerp_", "aten::_foreach_mul_", "aten::add",
    "aten::add_",          "aten::lerp",           "aten::lerp_",         "aten::mul",
    "aten::mul_",
};

// Returns how an operator makes whole numbers that may not fit; 0: it makes none.
char wrapping(const std::string& name) {
  for (const auto& [ends, how] :
       {std::pair{"aten::add", '+'}, {"aten::sub", '-'}, {"aten::mul", '*'}}) {
    if (name == ends || name == ends + std::string("_")) {
      return how;
    }
  }
  return name == "aten::_to_copy" ? 'c' : '\0';
}

bool matches(const std::vector<std::string>& patterns, const std::string& name) {
  for (const std::string& pattern : patterns) {
    // Backslashes have no meaning, as in Python's fnmatch.
    if (::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0) {
      return true;
    }
  }
  return false;
}

void read_schema(Operator& op, const c10::FunctionSchema& schema) {
  op.has_schema = true;
  const auto& arguments = schema.arguments();
  op.arity = arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    if (holds_tensors(argument.type())) {
      const c10::AliasInfo* alias = argument.alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      // An alias that is not written is that of a view: its elements are not touched.
      op.arguments.push_back(
          {static_cast<uint16_t>(i), !argument.kwarg_only(), alias == nullptr, writes});
    } else if (argument.name() == "device") {
      op.device = static_cast<int>(i);
    } else if (argument.name() == "generator") {
      op.generator = static_cast<int>(i);
    } else if (argument.name() == "reduction") {
      op.reduction = static_cast<int>(i);
    } else if (argument.name() == "training" || argument.name() == "train") {
      op.training = static_cast<int>(i);
    }
  }
  // Their schemas do not say it: training writes running statistics, its backward needs none.
  const bool normalizes = op.name.find("batch_norm") != std::string::npos;
  const bool backward = op.name.find("backward") != std::string::npos;
  op.workspace = op.name.find("_rnn") != std::string::npos;
  bool writes = false;
  for (Argument& argument : op.arguments) {
    const std::string& name = arguments[argument.position].name();
    const bool running = normalizes && name.compare(0, 8, "running_") == 0;
    argument.reads = argument.reads && !(running && backward);
    argument.statistics = running && !backward;
    argument.writes = argument.writes || argument.statistics;
    writes = writes || argument.writes;
  }
  for (const c10::Argument& result : schema.returns()) {
    op.fresh.push_back(result.alias_info() == nullptr && holds_tensors(result.type()));
    op.makes_storage = op.makes_storage || op.fresh.back();
  }
  op.collective = plan_collective(schema);
  if (op.collective) {
    for (Argument& argument : op.arguments) {
      const ArgumentUse use = use_of(schema, argument.position);
      argument.reads = use.reads;
      argument.writes = argument.writes || use.writes;
    }
  }
  const auto handle = c10::Dispatcher::singleton().findOp({schema.name(), schema.overload_name()});
  op.composite =
      handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  op.means = !op.composite && (op.reduction >= 0 || op.name == "aten::mean");
  op.counts_targets = op.name == "aten::nll_loss_forward" || op.name == "aten::nll_loss2d_forward";
  op.blends = std::find(std::begin(BLENDS), std::end(BLENDS), op.name) != std::end(BLENDS);
  op.rare = op.collective != nullptr || op.means || op.blends || op.wraps != 0;
  op.touches =
      std::find(std::begin(UNTOUCHING), std::end(UNTOUCHING), op.name) == std::end(UNTOUCHING);
  op.reads = reads_of(op.name, op.collective != nullptr);
  op.births =
      !op.composite && ((op.makes_storage && recording.access) || (writes && recording.numerics));
}

}  // namespace

// As filters.py decides: exclude patterns win, then include patterns, then the deny list.
bool wanted(const std::string& name) {
  const Process& here = process();
  if (matches(here.exclude, name)) {
    return false;
  }
  return matches(here.include, name) || !matches(here.deny, name);
}

const Operator* learn(const at::RecordFunction& function) {
  const std::string name = function.name();
  const std::string overload(overload_of(function));
  const std::string key = name + '\n' + overload;
  {
    std::lock_guard<std::mutex> hold(process().mutex);
    const auto& all = registry().current();
    const auto found = all.find(key);
    if (found != all.end()) {
      return found->second;
    }
  }
  // Never freed: frames and caches of any thread may point to it.
  auto op = std::make_unique<Operator>();
  op->name = name;
  op->overload = overload;
  op->text = texts().intern(name);
  op->wraps = wrapping(name);
  op->hidden = name.compare(0, sizeof ENGINE_SCOPE - 1, ENGINE_SCOPE) == 0;
  op->wanted = !op->hidden && wanted(name);
  if (name.compare(0, sizeof COMPILED_SCOPE - 1, COMPILED_SCOPE) == 0) {
    op->scope = layout::SCOPE_COMPILED;
  }
  if (const auto schema = function.operator_schema()) {
    read_schema(*op, *schema);
  }
  std::lock_guard<std::mutex> hold(process().mutex);
  const auto [entry, added] = registry().current().emplace(key, op.get());
  if (added) {
    op.release();
  }
  return entry->second;
}

void watch_operators() {
  // Never destroyed: it must outlive torch's own statics.
  static const auto& listening = *new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  static_cast<void>(listening);
}

void forget_operators() {
  std::lock_guard<std::mutex> hold(process().mutex);
  registry().operators.clear();
}

}  // namespace lanescope
