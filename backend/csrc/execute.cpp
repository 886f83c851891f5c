// Running a trace: one call into the runtime, then the cells point at the new values.

#include <algorithm>
#include <cstring>
#include <mutex>

#include "clock.h"
#include "device.h"
#include "trace.h"

namespace tpu {

namespace {

std::string& injected() {
  static auto* op = new std::string();
  return *op;
}

void reset() {
  Trace& open = trace();
  for (Cell* cell : open.pending) cell->pending = -1;
  for (auto& storage : open.externals) {
    cell_of(storage.unsafeGetStorageImpl())->external = -1;
  }
  open.pending.clear();
  open.nodes.clear();
  open.ints.clear();
  open.floats.clear();
  open.results = 0;
  open.id++;
  open.at = nullptr;
  std::vector<c10::Storage> released;
  released.swap(open.externals);  // last: may free storages
  released.clear();
  open.externals.swap(released);
}

// Free the cells whose storages are gone; a pending one is no longer a result.
void free_dead_cells() {
  Trace& open = trace();
  for (Cell* cell : take_dead_cells()) {
    if (cell->pending >= 0) {
      open.pending[cell->pending] = open.pending.back();
      open.pending[cell->pending]->pending = cell->pending;
      open.pending.pop_back();
    }
    free_cell(cell);
  }
}

void poison_pending(const std::shared_ptr<Failure>& failure) {
  for (Cell* cell : trace().pending) {
    cell->failure = failure;
    set_value(cell, nullptr);
  }
}

std::shared_ptr<Failure> failure_of_trace(const std::string& cause) {
  const Origin* origin = trace().nodes.front()->origin;
  return std::make_shared<Failure>(
      Failure{origin->op + " failed: " + cause + " (first recorded at " + origin->where + ")"});
}

bool injection_strikes() {
  if (injected().empty()) return false;
  for (Node* node : trace().nodes) {
    if (node->origin->op == injected()) {
      injected().clear();
      return true;
    }
  }
  return false;
}

PyObject* value_or_zeros(Cell* cell) {
  if (cell->value == nullptr) {
    const Layout* layout = layout_of(cell);
    Object device = checked(PyLong_FromLong(cell->device));
    Object zeros = call(callbacks().zeros, {dtype_object(layout->dtype).get(),
                                            int_tuple(layout->sizes).get(), device.get()});
    set_value(cell, zeros.release());
  }
  return cell->value;
}

template <typename T>
PyObject* put_vector(const std::vector<T>& values, c10::ScalarType dtype,
                     c10::DeviceIndex device) {
  Object memory = checked(PyMemoryView_FromMemory(
      reinterpret_cast<char*>(const_cast<T*>(values.data())),
      static_cast<Py_ssize_t>(values.size() * sizeof(T)), PyBUF_READ));
  Object index = checked(PyLong_FromLong(device));
  return call(callbacks().put,
              {memory.get(), dtype_object(dtype).get(),
               int_tuple({static_cast<int64_t>(values.size())}).get(), index.get()})
      .release();
}

template <typename T>
void stage(DynamicOperand<T>& operand, size_t count, c10::ScalarType dtype,
           c10::DeviceIndex device) {
  Object index = checked(PyLong_FromLong(device));
  Object size = checked(PyLong_FromSize_t(count));
  Object answer = call(callbacks().staging, {dtype_object(dtype).get(), size.get(), index.get()});
  if (answer.get() == Py_None) return;
  operand.array = PyTuple_GetItem(answer.get(), 0);
  operand.memory = static_cast<T*>(PyLong_AsVoidPtr(PyTuple_GetItem(answer.get(), 1)));
  if (PyErr_Occurred()) throw_python_error();
  Py_INCREF(operand.array);
}

// Bring a vector of scalars to the device, unless it is there already.
template <typename T>
void update(DynamicOperand<T>& operand, const std::vector<T>& values, c10::ScalarType dtype,
            c10::DeviceIndex device) {
  if (operand.array == nullptr) stage(operand, values.size(), dtype, device);
  if (operand.memory != nullptr) {
    memcpy(operand.memory, values.data(), values.size() * sizeof(T));
  } else if (operand.array == nullptr || operand.values != values) {
    PyObject* fresh = put_vector(values, dtype, device);
    Py_XSETREF(operand.array, fresh);
    operand.values = values;
  }
}

// Operands in the program's order: external inputs, then the dynamic integers and floats.
Object pack(Executable& program) {
  Trace& open = trace();
  size_t inputs = program.inputs.size();
  if (program.ints.taken) update(program.ints, open.ints, c10::kLong, open.device);
  if (program.floats.taken) update(program.floats, open.floats, c10::kDouble, open.device);
  Object list = checked(PyList_New(
      static_cast<Py_ssize_t>(inputs + program.ints.taken + program.floats.taken)));
  Py_ssize_t at = 0;
  auto add = [&](PyObject* value) {
    Py_INCREF(value);
    PyList_SET_ITEM(list.get(), at++, value);
  };
  for (uint32_t index : program.inputs) {
    add(value_or_zeros(cell_of(open.externals[index].unsafeGetStorageImpl())));
  }
  if (program.ints.taken) add(program.ints.array);
  if (program.floats.taken) add(program.floats.array);
  return list;
}

// The current Python error as one of ours, with the op's name.
[[noreturn]] void raise_translated() {
  Object error(take_error());
  const Origin* origin = trace().nodes.front()->origin;
  Object device = checked(PyLong_FromLong(trace().device));
  call(callbacks().translate,
       {error.get(), checked(PyUnicode_FromString(origin->op.c_str())).get(),
        checked(PyUnicode_FromString(origin->where.c_str())).get(), device.get()});
  TORCH_CHECK(false, "tpu: ", origin->op, " failed");
}

// Run the program and give the pending cells their values.
void execute(Executable& program) {
  Trace& open = trace();
  Object arguments = pack(program);
  PyObject* run[2] = {nullptr, arguments.get()};
  Object raw(
      PyObject_Vectorcall(program.execute, run + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!raw) raise_translated();
  arguments.reset();
  PyObject* unpack[3] = {nullptr, raw.get(), program.handlers};
  Object arrays = checked(PyObject_Vectorcall(callbacks().consume, unpack + 1,
                                              2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  counters().executions++;
  for (size_t i = 0; i < open.pending.size(); i++) {
    Cell* cell = open.pending[i];
    PyObject* array = PyList_GET_ITEM(arrays.get(), static_cast<Py_ssize_t>(i));
    Py_INCREF(array);
    cell->failure.reset();
    set_value(cell, array, program.donated[i] >= 0);
  }
}

struct Plan {
  std::vector<uint32_t> live;
  std::vector<int32_t> donated;
};

// A program's results are in the order of their ids.
void sort_pending() {
  auto& pending = trace().pending;
  auto before = [](const Cell* a, const Cell* b) { return a->id < b->id; };
  if (std::is_sorted(pending.begin(), pending.end(), before)) return;
  std::sort(pending.begin(), pending.end(), before);
  for (size_t i = 0; i < pending.size(); i++) pending[i]->pending = static_cast<int32_t>(i);
}

Plan plan() {
  Plan result;
  for (Cell* cell : trace().pending) {
    result.live.push_back(cell->id);
    bool ours = cell->external >= 0 && cell->value != nullptr && Py_REFCNT(cell->value) == 1;
    result.donated.push_back(ours ? cell->external : -1);
  }
  return result;
}

Executable* program_for_trace(const Plan& wanted) {
  Trace& open = trace();
  Executable* program = ready_executable(open.at, wanted.live, wanted.donated);
  if (program != nullptr) return program;
  std::vector<PyObject*> records;
  for (Node* node : open.nodes) records.push_back(node->record);
  open.at->executables.push_back(
      compile_program(records, wanted.live, wanted.donated, open.device));
  return open.at->executables.back().get();
}

// Does the program's donation still hold? A reader may have taken hold of a value meanwhile.
bool still_donates(const Executable& program) {
  for (int32_t input : program.donated) {
    if (input < 0) continue;
    Cell* cell = cell_of(trace().externals[input].unsafeGetStorageImpl());
    if (cell->value == nullptr || Py_REFCNT(cell->value) != 1) return false;
  }
  return true;
}

// The failure that an input already has, or null.
std::shared_ptr<Failure> inherited_failure(const Executable& program) {
  for (uint32_t index : program.inputs) {
    Cell* cell = cell_of(trace().externals[index].unsafeGetStorageImpl());
    if (cell->failure) return cell->failure;
  }
  return nullptr;
}

}  // namespace

Node::~Node() {
  children.clear();
  if (record == nullptr || is_off()) return;
  PythonCode python;
  Py_DECREF(record);
}

Executable::~Executable() {
  if (execute == nullptr || is_off()) return;
  PythonCode python;
  counters().programs--;
  for (PyObject* object : {execute, handlers, ints.array, floats.array}) Py_XDECREF(object);
}

void assign_result(Cell* cell, const Origin* origin) {
  Trace& open = trace();
  cell->trace = open.id;
  cell->id = open.results++;
  cell->origin = origin;
  if (cell->pending < 0) {
    cell->pending = static_cast<int32_t>(open.pending.size());
    open.pending.push_back(cell);
  }
}

Executable* ready_executable(Node* node, const std::vector<uint32_t>& live,
                             const std::vector<int32_t>& donated) {
  for (auto& program : node->executables) {
    if (program->live == live && program->donated == donated) return program.get();
  }
  return nullptr;
}

std::unique_ptr<Executable> compile_program(const std::vector<PyObject*>& records,
                                            std::vector<uint32_t> live,
                                            std::vector<int32_t> donated,
                                            c10::DeviceIndex device) {
  PythonCode python;
  Object list = checked(PyList_New(static_cast<Py_ssize_t>(records.size())));
  for (size_t i = 0; i < records.size(); i++) {
    Py_INCREF(records[i]);
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), records[i]);
  }
  std::vector<int64_t> ids(live.begin(), live.end()), gifts(donated.begin(), donated.end());
  Object index = checked(PyLong_FromLong(device));
  Object parts = call(callbacks().compile,
                      {list.get(), int_tuple(ids).get(), int_tuple(gifts).get(), index.get()});
  TORCH_CHECK(PyTuple_Check(parts.get()) && PyTuple_GET_SIZE(parts.get()) == 5, "tpu: compile");
  auto program = std::make_unique<Executable>();
  auto take = [&](Py_ssize_t i) {
    PyObject* item = PyTuple_GET_ITEM(parts.get(), i);
    Py_INCREF(item);
    return item;
  };
  program->execute = take(0);
  counters().programs++;
  program->handlers = take(1);
  for (int64_t input : ints_from(PyTuple_GET_ITEM(parts.get(), 2))) {
    program->inputs.push_back(static_cast<uint32_t>(input));
  }
  program->ints.taken = PyObject_IsTrue(PyTuple_GET_ITEM(parts.get(), 3)) == 1;
  program->floats.taken = PyObject_IsTrue(PyTuple_GET_ITEM(parts.get(), 4)) == 1;
  program->live = std::move(live);
  program->donated = std::move(donated);
  return program;
}

void run_trace(bool rethrow, Executable* program) {
  Trace& open = trace();
  if (open.nodes.empty()) return;
  bool timing = settings().timing;
  int64_t begin = timing ? now_ns() : 0;
  Gil gil;
  free_dead_cells();
  try {
    sort_pending();
    if (program == nullptr || !still_donates(*program)) program = program_for_trace(plan());
    auto failure = inherited_failure(*program);
    if (!failure && injection_strikes()) failure = failure_of_trace("injected device failure");
    if (failure) {
      poison_pending(failure);
    } else {
      execute(*program);
    }
  } catch (const std::exception& error) {
    poison_pending(failure_of_trace(error.what()));
    reset();
    if (rethrow) throw;
    return;
  }
  reset();
  if (timing) counters().execute_ns += now_ns() - begin;
}

void flush() {
  if (!process().ready || is_off()) return;
  Queue queue;
  if (trace().nodes.empty()) {
    if (!has_dead_cells()) return;
    Gil gil;
    free_dead_cells();
  } else {
    run_trace(false);
  }
}

PyObject* marker(c10::DeviceIndex device) {
  if (!process().ready) return nullptr;
  Object index = checked(PyLong_FromLong(device));
  Object array = call(callbacks().marker, {index.get()});
  return array.get() == Py_None ? nullptr : array.release();
}

void synchronize(c10::DeviceIndex device) {
  flush();
  if (!process().ready) return;
  Gil gil;
  Object behind(marker(device));
  if (behind) wait_for(behind.get());
}

bool is_idle(c10::DeviceIndex device) {
  flush();
  if (!process().ready) return true;
  Gil gil;
  Object behind(marker(device));
  return !behind || is_ready(behind.get());
}

PyObject* settled_value(Cell* cell) {
  if (cell->failure) {
    std::string text = "tpu: this tensor has no value: " + cell->failure->text;
    if (cell->origin != nullptr) {
      text += "; it is the result of " + cell->origin->op + ", first recorded at " +
              cell->origin->where;
    }
    TORCH_CHECK(false, text);
  }
  return value_or_zeros(cell);
}

void inject_failure(const std::string& op) {
  Queue queue;
  injected() = op;
}

}  // namespace tpu
