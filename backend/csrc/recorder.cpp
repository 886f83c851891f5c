#include "recorder.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "clock.h"
#include "device.h"
#include "trace.h"

namespace tpu {

namespace {

std::mutex& queue_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
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
  if (!queue_mutex().try_lock()) {
    if (PyGILState_Check()) {
      PyThreadState* state = PyEval_SaveThread();
      queue_mutex().lock();
      PyEval_RestoreThread(state);
    } else {
      queue_mutex().lock();
    }
  }
  held_ = true;
}

void Queue::release() {
  if (held_) queue_mutex().unlock();
  held_ = false;
}

// ---- Results ----

void check_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isIntegralType(dtype, true) || dtype == c10::kHalf || dtype == c10::kBFloat16 ||
          dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kComplexFloat ||
          dtype == c10::kComplexDouble || c10::isFloat8Type(dtype),
      "tpu: dtype ", c10::toString(dtype), " is not supported by the device; convert first, for "
      "example with .float() or .to(torch.complex64)");
}

TensorMeta describe_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  TensorMeta meta{sizes.vec(), strides.vec(), c10::scalarTypeToTypeMeta(dtype), 0, nullptr};
  meta.nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  // A dense tensor's value has its dimensions in memory order; see memory_order in interpreter.py.
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); d++) {
    if (sizes[d] != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  int64_t expected = 1, numel = 1;
  bool dense = true;
  for (size_t i = order.size(); i-- > 0;) {
    dense = dense && strides[order[i]] == expected;
    expected *= sizes[order[i]];
  }
  for (int64_t size : sizes) numel *= size;
  std::vector<int64_t> shape = sizes.vec();
  if (dense && numel != 0) {
    size_t next = 0;
    for (size_t d = 0; d < shape.size(); d++) {
      if (sizes[d] != 1) shape[d] = sizes[order[next++]];
    }
  } else if (numel != 0) {
    shape = {static_cast<int64_t>(meta.nbytes / c10::elementSize(dtype))};
  }
  meta.layout = intern_layout(dtype, shape);
  return meta;
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

// ---- Meta ----

at::Tensor meta_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;
  auto meta = at::Tensor(at::detail::empty_strided_meta(
      tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return meta;
}

// An argument with its tensors mapped and device arguments replaced.
template <typename F>
c10::IValue moved_value(const c10::IValue& value, c10::DeviceType device, F&& move) {
  if (value.isTensor()) return move(value.toTensor());
  if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(device);
  if (value.isGenerator()) return c10::IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) list.push_back(move(item));
    return list;
  }
  if (value.isList() &&
      value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      list.push_back(item.isTensor() ? std::make_optional(move(item.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

// The Meta kernels' messages are not always the CPU kernels'. Ask the CPU with zeros.
void raise_as_on_cpu(const Operation& op, const c10::IValue* arguments) {
  constexpr int64_t kMostElements = int64_t(1) << 24;
  bool small = true;
  auto host = [&](const at::Tensor& t) {
    if (!t.defined() || !t.device().is_privateuseone()) return t;
    small = small && t.numel() <= kMostElements;
    auto zeros = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU));
    if (small) zeros.zero_();
    return zeros;
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arguments.size() && small; i++) {
    stack.push_back(moved_value(arguments[i], c10::kCPU, host));
  }
  if (!small) return;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

// Returns and resizes of a call, by torch's Meta kernel. Raises torch's own shape errors.
void infer(const Operation& op, const c10::IValue* arguments, Node& node) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arguments.size(); i++) stack.push_back(moved_value(arguments[i], c10::kMeta, meta_tensor));
  const torch::jit::Stack inputs = stack;
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (...) {
    raise_as_on_cpu(op, arguments);
    throw;
  }

  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (!op.arguments[i].out || !inputs[i].isTensor() || !arguments[i].isTensor()) continue;
    auto wanted = inputs[i].toTensor().sizes();
    if (wanted != arguments[i].toTensor().sizes()) node.resize.emplace_back(i, wanted.vec());
  }
  if (!node.resize.empty()) return;

  const auto& returns = op.handle.schema().returns();
  auto fresh = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return Result{Result::kUndefined};
    check_dtype(tensor.scalar_type());
    node.results++;
    return Result{Result::kFresh, 0,
                  describe_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type())};
  };
  for (size_t r = 0; r < returns.size(); r++) {
    Return result;
    if (const auto* alias = returns[r].alias_info(); alias != nullptr && alias->isWrite()) {
      const auto& schema = op.handle.schema().arguments();
      for (uint32_t i = 0; i < schema.size(); i++) {
        const auto* from = schema[i].alias_info();
        if (from != nullptr && from->isWrite() && from->beforeSets() == alias->beforeSets()) {
          result.results.push_back({Result::kAlias, i});
        }
      }
    } else if (stack[r].isTensorList()) {
      result.is_list = true;
      for (const at::Tensor& item : stack[r].toTensorVector()) result.results.push_back(fresh(item));
    } else if (stack[r].isTensor()) {
      result.results.push_back(fresh(stack[r].toTensor()));
    } else {
      result.results.push_back({Result::kConstant, 0, {}, stack[r]});
    }
    node.returns.push_back(std::move(result));
  }
  for_each_written(op, arguments, [&](const at::Tensor&) { node.results++; });
}

// ---- Overlapping memory: the boxed path skips torch's checks, so they are made here. ----

void check_written_once(const Operation& op, const c10::IValue* arguments) {
  for_each_written(op, arguments, [](const at::Tensor& t) { at::assert_no_internal_overlap(t); });
}

void check_partial_overlap(const Operation& op, const c10::IValue* arguments) {
  for (size_t w = 0; w < op.arguments.size(); w++) {
    if (!op.arguments[w].write || !is_device_tensor(arguments[w])) continue;
    const at::Tensor& written = arguments[w].toTensor();
    for (size_t i = 0; i < op.arguments.size(); i++) {
      if (i == w || !is_device_tensor(arguments[i])) continue;
      const at::Tensor& read = arguments[i].toTensor();
      if (read.storage().unsafeGetStorageImpl() == written.storage().unsafeGetStorageImpl()) {
        at::assert_no_partial_overlap(written, read);
      }
    }
  }
}

// ---- Python record of a node ----

const Origin* intern_origin(const std::string& op, const std::string& where) {
  static std::mutex mutex;
  static auto* table = new std::unordered_map<std::string, const Origin*>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& origin = (*table)[op + '\n' + where];
  if (origin == nullptr) origin = new Origin{op, where};
  return origin;
}

Object outputs_tuple(const Node& node) {
  Object list = checked(PyList_New(0));
  for (const Return& result : node.returns) {
    for (const Result& item : result.results) {
      if (item.kind != Result::kFresh) continue;
      Object entry = checked(PyTuple_New(4));
      auto dtype = c10::typeMetaToScalarType(item.meta.dtype);
      PyTuple_SET_ITEM(entry.get(), 0, int_tuple(item.meta.sizes).release());
      PyTuple_SET_ITEM(entry.get(), 1, int_tuple(item.meta.strides).release());
      PyTuple_SET_ITEM(entry.get(), 2, dtype_object(dtype).release());
      PyTuple_SET_ITEM(entry.get(), 3, int_tuple(item.meta.layout->sizes).release());
      if (PyList_Append(list.get(), entry.get()) != 0) throw_python_error();
    }
  }
  return list;
}

void describe(const Operation& op, Object arguments, Node& node) {
  Object answer = call(callbacks().describe,
                       {checked(PyUnicode_FromString(op.name.c_str())).get(), arguments.get(),
                        outputs_tuple(node).get()});
  PyObject* where = PyTuple_GetItem(answer.get(), 1);
  PyObject* draws = PyTuple_GetItem(answer.get(), 2);
  if (where == nullptr || draws == nullptr) throw_python_error();
  node.record = PyTuple_GetItem(answer.get(), 0);
  Py_INCREF(node.record);
  node.origin = intern_origin(op.name, PyUnicode_AsUTF8(where));
  node.draws = PyLong_AsUnsignedLongLong(draws);
}

// ---- Recording ----

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
      counters().programs++;
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
  TORCH_CHECK(!state.exiting, "tpu: the interpreter is shutting down");
}

// Device threads of autograd gain a recorder nothing: every op is only recorded there.
void keep_backward_on_this_thread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

// A call whose result belongs on another device, such as _to_copy(device="cpu").
bool leaves_device(const Operation& op, const torch::jit::Stack& stack) {
  const auto* arguments = stack.data() + stack.size() - op.arguments.size();
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (arguments[i].isDevice() && !arguments[i].toDevice().is_privateuseone()) return true;
  }
  return false;
}

}  // namespace

void check_debug_bounds(Operation& op, const torch::jit::Stack& stack) {
  PythonCode python;
  Object arguments =
      python_arguments(op, stack.data() + stack.size() - op.arguments.size());
  call(callbacks().check_bounds,
       {checked(PyUnicode_FromString(op.name.c_str())).get(), arguments.get()});
}

namespace {

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

bool is_composed(Operation& op, const c10::IValue* arguments) {
  thread_local std::vector<uint64_t> kinds;
  kinds.clear();
  auto add = [](const at::Tensor& t) {
    kinds.push_back(!t.defined() ? 1
                                 : uint64_t(t.scalar_type()) << 8 | uint64_t(t.dim()) << 16 |
                                       uint64_t(t.device().type()) << 32);
  };
  for (size_t i = 0; i < op.arguments.size(); i++) {
    if (arguments[i].isTensor()) add(arguments[i].toTensor());
    if (!arguments[i].isList() || arguments[i].isIntList()) continue;
    for (const c10::IValue& item : arguments[i].toListRef()) {
      add(item.isTensor() ? item.toTensor() : at::Tensor());
    }
  }
  PythonCode python;  // guards the table too
  auto found = op.composed_for.find(kinds);
  if (found != op.composed_for.end()) return found->second;
  auto key = kinds;
  Object given = python_arguments(op, arguments);
  Object answer = checked(PyObject_CallObject(op.composed_when, given.get()));
  bool composed = PyObject_IsTrue(answer.get()) == 1;
  op.composed_for[key] = composed;
  return composed;
}

c10::IValue result_value(PyObject* result) {
  if (THPVariable_Check(result)) return THPVariable_Unpack(result);
  if (result == Py_None) return at::Tensor();
  if (PyBool_Check(result)) return result == Py_True;
  if (PyLong_Check(result)) return static_cast<int64_t>(PyLong_AsLongLong(result));
  if (PyFloat_Check(result)) return PyFloat_AsDouble(result);
  Object items = checked(PySequence_Fast(result, "tpu: a Python kernel gave no tensor"));
  c10::List<at::Tensor> list;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); i++) {
    list.push_back(THPVariable_Unpack(PySequence_Fast_GET_ITEM(items.get(), i)));
  }
  return list;
}

// Serve a call by a Python function of its arguments.
void run_python(Operation& op, PyObject* function, torch::jit::Stack* stack) {
  const auto* arguments = stack->data() + stack->size() - op.arguments.size();
  PythonCode python;
  Object given = python_arguments(op, arguments);
  Object result = checked(PyObject_CallObject(function, given.get()));
  torch::jit::drop(*stack, op.arguments.size());
  size_t count = op.handle.schema().returns().size();
  if (count == 1) return stack->push_back(result_value(result.get()));
  if (count == 0) return;
  Object items = checked(PySequence_Fast(result.get(), "tpu: a Python kernel returns a tuple"));
  for (size_t i = 0; i < count; i++) {
    stack->push_back(
        result_value(PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i))));
  }
}

// An op met through the fallback: does a row serve it, may the CPU, or is it refused?
void find_server(Operation& op, const c10::IValue* arguments) {
  PythonCode python;
  Object answer = call(callbacks().server, {checked(PyUnicode_FromString(op.name.c_str())).get(),
                                            python_arguments(op, arguments).get()});
  if (answer.get() != Py_None) op.cpu_kernel = answer.release();
  op.served = true;
}

}  // namespace

void record(Operation& op, torch::jit::Stack* stack) {
  check_process();
  keep_backward_on_this_thread();
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
  if (debug && op.bounds) check_debug_bounds(op, *stack);
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
