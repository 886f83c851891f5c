// Operations and their registration with torch's dispatcher.

#include <ATen/core/op_registration/op_registration.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "recorder.h"

namespace tpu {

namespace {

struct RecordKernel final : c10::OperatorKernel {
  explicit RecordKernel(Operation* op) : op(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    record(*op, stack);
  }
  Operation* op;
};

void record_any(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  record(operation(handle), stack);
}

torch::Library& library(const std::string& space) {
  static auto* libraries = new std::unordered_map<std::string, std::unique_ptr<torch::Library>>();
  auto& entry = (*libraries)[space];
  if (!entry) {
    entry = std::make_unique<torch::Library>(torch::Library::IMPL, space,
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  }
  return *entry;
}

c10::TypePtr bare(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) {
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  return type;
}

}  // namespace

Operation::Operation(c10::OperatorHandle handle) : handle(handle) {
  const auto& schema = handle.schema();
  name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  for (const auto& argument : schema.arguments()) {
    Argument entry;
    entry.write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    entry.out = argument.is_out();
    if (argument.default_value().has_value()) entry.standard = *argument.default_value();
    auto real = bare(argument.real_type());
    if (real->kind() == c10::TypeKind::ScalarTypeType) entry.kind = Argument::kDtype;
    if (real->kind() == c10::TypeKind::LayoutType) entry.kind = Argument::kLayout;
    if (real->kind() == c10::TypeKind::MemoryFormatType) entry.kind = Argument::kMemoryFormat;
    writes = writes || entry.write;
    arguments.push_back(entry);
  }
  for (const auto& result : schema.returns()) {
    views = views || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
  }
  for (auto tag : handle.getTags()) seeded = seeded || tag == at::Tag::nondeterministic_seeded;
}

Operation& operation(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static auto* table = new std::unordered_map<const void*, std::unique_ptr<Operation>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*table)[&handle.schema()];
  if (!entry) entry = std::make_unique<Operation>(handle);
  return *entry;
}

Operation& operation_named(const std::string& name) {
  auto dot = name.find('.');
  return operation(c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str()));
}

void compose_operation(const std::string& name, PyObject* when, PyObject* function) {
  auto& op = operation_named(name);
  Py_INCREF(when);
  Py_INCREF(function);
  op.composed_when = when;
  op.composed = function;
}

void register_operation(const std::string& name, const std::vector<bool>& dynamic, bool bounds,
                        bool overlaps) {
  auto& op = operation_named(name);
  auto& handle = op.handle;
  for (size_t i = 0; i < dynamic.size(); i++) op.arguments.at(i).dynamic = dynamic[i];
  op.bounds = bounds;
  op.overlaps = overlaps;
  op.served = true;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
  auto colon = name.find("::");
  library(name.substr(0, colon))
      .impl(name.substr(colon + 2).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(&op)));
}

void register_fallback() {
  static torch::Library any(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                            __LINE__);
  any.fallback(torch::CppFunction::makeFromBoxedFunction<&record_any>());
}

}  // namespace tpu
