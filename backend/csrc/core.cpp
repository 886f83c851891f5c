// The core as one translation unit: torch's headers are most of the compile time. autocast.cpp is
// the other one, compiled beside it.

#include "address.cpp"
#include "cell.cpp"
#include "device.cpp"
#include "execute.cpp"
#include "infer.cpp"
#include "key.cpp"
#include "module.cpp"
#include "operation.cpp"
#include "plumbing.cpp"
#include "python.cpp"
#include "python_kernel.cpp"
#include "recorder.cpp"
#include "stream.cpp"
