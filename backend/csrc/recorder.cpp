#include "recorder.h"

#include <ATen/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <thread>

#include "clock.h"
#include "device.h"
#include "infer.h"
#include "python_kernel.h"
#include "trace.h"

namespace tpu {

namespace {

std::mutex& queue_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

std::atomic<std::thread::id>& queue_owner() {
  static auto* owner = new std::atomic<std::thread::id>();
  return *owner;
}

}  // namespace

Settings& settings() {
  static auto* instance = new Settings();
  return *instance;
}

Counters& counters() {
  static auto* instance = new Counters();
  return *instance;
}

Trace& trace() {
  static auto* instance = new Trace();
  return *instance;
}

Node* root(c10::DeviceIndex device) {
  static auto* roots = new std::array<Node, kMaxDevices>();
  return &roots->at(device);
}

// ---- Queue ----

Queue::Queue() { acquire(); }
Queue::~Queue() { release(); }

void Queue::acquire() {
  // A signal handler or finaliser that Python ran inside one of our callbacks.
  TORCH_CHECK(queue_owner() != std::this_thread::get_id(),
              "tpu: the device was used by a signal handler or finaliser while this thread was "
              "running an operation on it; let the handler set a flag and act on that later");
  if (!queue_mutex().try_lock()) {
    process().waiting++;
    if (PyGILState_Check()) {
      PyThreadState* state = PyEval_SaveThread();
      queue_mutex().lock();
      PyEval_RestoreThread(state);
    } else {
      queue_mutex().lock();
    }
    process().waiting--;
  }
  held_ = true;
  queue_owner() = std::this_thread::get_id();
}

void Queue::release() {
  if (!held_) return;
  held_ = false;
  queue_owner() = std::thread::id();
  queue_mutex().unlock();
}


namespace {

at::Tensor make_tensor(const TensorMeta& meta, c10::DeviceIndex device) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), meta.nbytes, allocate(meta.nbytes, device), allocator(),
      /*resizable=*/true));
  Cell* cell = cell_of(storage.unsafeGetStorageImpl());
  cell->layout = meta.layout;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides);
  return tensor;
}

// Data-dependent sizes make new nodes for ever; past this many, the older half is forgotten.
constexpr size_t kMostChildren = 16384;

void forget_half(Node& parent) {
  std::vector<uint64_t> ages;
  for (auto& [key, child] : parent.children) ages.push_back(child->last_trace);
  std::nth_element(ages.begin(), ages.begin() + ages.size() / 2, ages.end());
  uint64_t oldest_kept = ages[ages.size() / 2];
  parent.predicted = nullptr;
  Gil gil;
  for (auto it = parent.children.begin(); it != parent.children.end();) {
    it = it->second->last_trace < oldest_kept ? parent.children.erase(it) : std::next(it);
  }
}

class Recording {
 public:
  Recording(Operation& op, torch::jit::Stack* stack)
      : op_(op), stack_(stack), arguments_(stack->data() + stack->size() - op.arguments.size()) {}

  void run() {
    for (;;) {
      before_ = mark();
      keyed_ = true;
      try {
        if (attempt()) return;
      } catch (...) {
        undo();
        throw;
      }
    }
  }

 private:
  // Forget what this call added to the open trace; before the queue is given up.
  void undo() {
    if (keyed_) roll_back(before_);
    keyed_ = false;
  }

  // One try with the queue held. False: something was prepared (a node, a program, a resize).
  bool attempt() {
    Trace& open = trace();
    build_key(op_, arguments_, key_);
    if (!open.nodes.empty() && open.device != key_.device) {
      undo();
      run_trace(true);
      return false;
    }
    if (open.nodes.empty()) {
      open.device = key_.device;
      open.at = root(key_.device);
    }
    if (key_.repeats && op_.writes) check_partial_overlap(op_, arguments_);
    Node* node = find(open.at);
    if (node == nullptr) {
      add_node(open.at);
      return false;
    }
    if (!node->resize.empty()) {
      resize_outputs(*node);
      return false;
    }
    if (settings().node_cap == 1 && !prepare_program(node)) return false;
    append(node);
    return true;
  }

  Node* find(Node* parent) {
    Node* guess = parent->predicted;
    if (guess != nullptr && *guess->key == key_.words) return guess;
    auto found = parent->children.find(key_.words);
    if (found == parent->children.end()) return nullptr;
    parent->predicted = found->second.get();
    return parent->predicted;
  }

  // A call seen for the first time: infer and describe it, with no lock held.
  void add_node(Node* parent) {
    counters().misses++;
    Object described;
    {
      Gil gil;
      described = describe_arguments(op_, arguments_, before_);
    }
    auto words = key_.words;
    auto device = key_.device;
    undo();
    auto node = std::make_unique<Node>();
    {
      Unlocked unlocked(queue_);
      prepare_node(*node, std::move(described));
    }
    Trace& open = trace();
    if (open.nodes.empty()) open.at = root(device);
    if (open.at != parent) return;  // another thread recorded in between: start over
    if (open.nodes.empty() && parent->children.size() >= kMostChildren) forget_half(*parent);
    auto [place, added] = parent->children.emplace(std::move(words), nullptr);
    if (added) {
      place->second = std::move(node);
      place->second->key = &place->first;
    }
  }

  void prepare_node(Node& node, Object described) {
    struct Locked {  // the description is a Python object whatever happens below
      Object object;
      ~Locked() {
        PythonCode python;
        object.reset();
      }
    } locked{std::move(described)};
    if (op_.writes && !op_.overlaps) check_written_once(op_, arguments_);
    infer(op_, arguments_, node);
    if (!node.resize.empty()) return;
    try {
      PythonCode python;
      describe(op_, std::move(locked.object), node);
    } catch (...) {
      raise_as_on_cpu(op_, arguments_);
      throw;
    }
  }

  void resize_outputs(const Node& node) {
    auto resizes = node.resize;
    undo();
    Unlocked unlocked(queue_);
    for (auto& [argument, sizes] : resizes) {
      at::native::resize_output(arguments_[argument].toTensor(), sizes);
    }
  }

  // Strict mode: compile before recording, with no lock held, so that threads compile at once.
  bool prepare_program(Node* node) {
    if (!op_.writes && !node->executables.empty()) {  // nothing to donate: one program serves
      program_ = node->executables.front().get();
      return true;
    }
    std::vector<int32_t> donated;
    std::vector<uint32_t> live;
    plan(*node, live, donated);
    program_ = ready_executable(node, live, donated);
    if (program_ != nullptr) return true;
    std::vector<PyObject*> records{node->record};
    auto device = key_.device;
    undo();
    std::unique_ptr<Executable> program;
    {
      Unlocked unlocked(queue_);
      try {
        program = compile_program(records, live, donated, device);
      } catch (...) {
        raise_as_on_cpu(op_, arguments_);
        throw;
      }
    }
    if (ready_executable(node, live, donated) == nullptr) {
      node->executables.push_back(std::move(program));
    }
    return false;
  }

  // The live results and donations that running this call alone will have.
  void plan(const Node& node, std::vector<uint32_t>& live, std::vector<int32_t>& donated) {
    uint32_t id = 0;
    for (const Return& result : node.returns) {
      for (const Result& item : result.results) {
        if (item.kind == Result::kFresh) {
          live.push_back(id++);
          donated.push_back(-1);
        }
      }
    }
    c10::SmallVector<std::pair<Cell*, uint32_t>, 4> written;
    for_each_written(op_, arguments_, [&](const at::Tensor& tensor) {
      Cell* cell = cell_of(tensor.unsafeGetTensorImpl());
      for (auto& [seen, last] : written) {
        if (seen == cell) {
          last = id++;
          return;
        }
      }
      written.emplace_back(cell, id++);
    });
    std::sort(written.begin(), written.end(),
              [](auto& a, auto& b) { return a.second < b.second; });
    if (written.empty()) return;
    Gil gil;
    for (auto& [cell, last] : written) {
      live.push_back(last);
      bool ours = cell->value != nullptr && Py_REFCNT(cell->value) == 1;
      donated.push_back(ours ? cell->external : -1);
    }
  }

  void append(Node* node) {
    Trace& open = trace();
    counters().recorded++;
    counters().hits++;
    if (node->draws != 0) draw(*node);
    keyed_ = false;
    open.nodes.push_back(node);
    open.at = node;
    node->last_trace = open.id;

    c10::SmallVector<c10::IValue, 4> results;
    for (const Return& result : node->returns) {
      if (result.is_list) {
        c10::List<at::Tensor> list;
        for (const Result& item : result.results) list.push_back(make(item, node));
        results.emplace_back(std::move(list));
        continue;
      }
      for (const Result& item : result.results) {
        switch (item.kind) {
          case Result::kAlias: results.emplace_back(arguments_[item.argument]); break;
          case Result::kConstant: results.emplace_back(item.constant); break;
          default: results.emplace_back(make(item, node));
        }
      }
    }
    for_each_written(op_, arguments_, [&](const at::Tensor& tensor) {
      assign_result(cell_of(tensor.unsafeGetTensorImpl()), node->origin);
    });
    if (static_cast<int64_t>(open.nodes.size()) >= settings().node_cap) run_trace(true, program_);
    torch::jit::drop(*stack_, op_.arguments.size());
    for (auto& value : results) stack_->emplace_back(std::move(value));
  }

  at::Tensor make(const Result& item, Node* node) {
    if (item.kind == Result::kUndefined) return at::Tensor();
    at::Tensor tensor = make_tensor(item.meta, key_.device);
    assign_result(cell_of(tensor.unsafeGetTensorImpl()), node->origin);
    return tensor;
  }

  // Seed and offset become the call's last two integer operands.
  void draw(const Node& node) {
    const at::Generator* generator = &default_generator(key_.device);
    std::optional<at::Generator> given;
    for (size_t i = 0; i < op_.arguments.size(); i++) {
      if (arguments_[i].isGenerator()) given = arguments_[i].toGenerator();
    }
    if (given.has_value()) generator = &*given;
    TORCH_CHECK(generator->device().is_privateuseone(),
                "Expected a 'tpu' device type for generator but found '",
                generator->device().type(), "'");
    TORCH_CHECK(generator->device().index() == key_.device, "Expected a generator of tpu:",
                int(key_.device), " but found one of ", generator->device());
    auto* impl = generator->get<Generator>();
    std::lock_guard<std::mutex> lock(impl->mutex_);
    trace().ints.push_back(static_cast<int64_t>(impl->current_seed()));
    trace().ints.push_back(static_cast<int64_t>(impl->advance(node.draws)));
  }

  Operation& op_;
  torch::jit::Stack* stack_;
  c10::IValue* arguments_;
  Queue queue_;
  static thread_local Key key_;
  Mark before_{};
  bool keyed_ = false;
  Executable* program_ = nullptr;  // strict mode: the one that this call runs
};

thread_local Key Recording::key_;

void check_process() {
  auto& state = process();
  if (!state.ready) ensure_ready();
  TORCH_CHECK(!state.forked,
              "tpu: the device was used in the parent process and cannot be used in a forked child; "
              "start workers with the 'spawn' method (torch.multiprocessing.set_start_method)");
  if (state.exiting) {
    TORCH_CHECK(queue_owner() != std::this_thread::get_id(),
                "tpu: the interpreter is shutting down");
    Queue parked;  // never returns: see shut_down
  }
}

// A call whose result belongs on another device, such as _to_copy(device="cpu").
bool leaves_device(const Operation& op, const torch::jit::Stack& stack) {
  const auto* arguments = stack.data() + stack.size() - op.arguments.size();
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (arguments[i].isDevice() && !arguments[i].toDevice().is_privateuseone()) return true;
  }
  return false;
}

constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                     c10::DispatchKey::ZeroTensor});

bool has_bits(const c10::IValue& value) {
  if (!is_device_tensor(value)) return false;
  return value.toTensor().unsafeGetTensorImpl()->key_set().has_any(kBits);
}

// Lowerings do not know conjugate and negative bits. Torch resolves them before most ops; what
// falls through (clone, for one) is resolved here.
void resolve_bits(const Operation& op, torch::jit::Stack* stack) {
  auto* arguments = stack->data() + stack->size() - op.arguments.size();
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (has_bits(arguments[i]) && !op.arguments[i].write) {
      arguments[i] = resolved(arguments[i].toTensor());
    } else if (arguments[i].isTensorList()) {
      auto list = arguments[i].toTensorList();
      for (size_t k = 0; k < list.size(); k++) {
        const at::Tensor item = list.get(k);
        if (has_bits(item)) list.set(k, resolved(item));
      }
    }
  }
}

}  // namespace

void record(Operation& op, torch::jit::Stack* stack) {
  check_process();
  if (leaves_device(op, *stack)) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!op.views, "tpu: ", op.name,
                              " returns a view and has no device kernel");
  if (!op.served) {
    find_server(op, stack->data() + stack->size() - op.arguments.size());
  }
  if (op.cpu_kernel != nullptr) return run_python(op, op.cpu_kernel, stack);
  resolve_bits(op, stack);
  if (op.composed != nullptr &&
      is_composed(op, stack->data() + stack->size() - op.arguments.size())) {
    return run_python(op, op.composed, stack);
  }
  bool debug = settings().mode == static_cast<int>(Mode::kDebug);
  if (debug && op.bounds) check_bounds(op, stack->data() + stack->size() - op.arguments.size());
  bool timing = settings().timing;
  int64_t begin = timing ? now_ns() : 0;
  int64_t inside = timing ? counters().execute_ns.load() : 0;
  Recording(op, stack).run();
  if (timing) {
    counters().record_ns += now_ns() - begin - (counters().execute_ns.load() - inside);
  }
  if (debug) synchronize(current_device());
}

}  // namespace tpu
