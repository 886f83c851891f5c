// The trace trie: shape cache, trace and executable key in one structure.
//
// A node is one recorded operation after its predecessors, matched word by word (exact, no hashes
// trusted). It holds what the operation returns, its Python record, and the programs compiled for
// traces that end there.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <unordered_map>
#include <vector>

#include "cell.h"
#include "python.h"

namespace tpu {

// The metadata of a tensor that an operation creates, and the layout of its cell.
struct TensorMeta {
  std::vector<int64_t> sizes, strides;
  caffe2::TypeMeta dtype;
  size_t nbytes;
  const Layout* layout;
};
TensorMeta describe_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

struct Result {
  enum Kind : uint8_t { kFresh, kAlias, kUndefined, kConstant } kind;
  uint32_t argument = 0;  // kAlias: which argument is returned
  TensorMeta meta;        // kFresh
  c10::IValue constant;   // kConstant
};

// One return of the schema: a single result, or a list of them.
struct Return {
  bool is_list = false;
  std::vector<Result> results;
};

// A vector of scalars that a program takes at run time, on the device.
template <typename T>
struct DynamicOperand {
  bool taken = false;
  std::vector<T> values;      // of the last run: put on the device again only when they change
  PyObject* array = nullptr;
  // Where the runtime reads host memory in place and only during an execution, the array's own
  // memory: new values are written there.
  T* memory = nullptr;
};

// A compiled program for one live set and donation pattern.
struct Executable {
  std::vector<uint32_t> live;     // ids of its results, ascending
  std::vector<int32_t> donated;   // per result: the external input whose memory it takes, or -1
  std::vector<uint32_t> inputs;   // external inputs it reads, in order
  PyObject* execute = nullptr;
  PyObject* handlers = nullptr;
  DynamicOperand<int64_t> ints;
  DynamicOperand<double> floats;

  Executable() = default;
  Executable(const Executable&) = delete;
  ~Executable();
};

struct Node;
using Children = std::unordered_map<std::vector<uint64_t>, std::unique_ptr<Node>, KeyHash>;

struct Node {
  Node() = default;
  Node(const Node&) = delete;
  ~Node();

  const std::vector<uint64_t>* key = nullptr;  // owned by the parent's map
  std::vector<Return> returns;
  std::vector<std::pair<uint32_t, std::vector<int64_t>>> resize;  // out= arguments to resize first
  uint32_t results = 0;  // ids it takes: fresh tensors, then writes
  uint64_t draws = 0;    // blocks of random bits it consumes
  const Origin* origin = nullptr;
  PyObject* record = nullptr;
  Node* predicted = nullptr;
  uint64_t last_trace = 0;  // the trace that last used it
  Children children;
  std::vector<std::unique_ptr<Executable>> executables;
};

}  // namespace tpu
