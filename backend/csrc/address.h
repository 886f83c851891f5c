// Addresses for device storages: unique, aligned, never readable.
//
// A storage's data pointer is an address in a PROT_NONE reservation, so pointer arithmetic and
// overlap checks are right and a stray host access faults instead of reading rubbish. Freed ranges
// are handed out again by size class, so a long run cannot exhaust the reservation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace tpu {

class AddressSpace {
 public:
  // Returns nullptr for zero bytes. Throws c10::OutOfMemoryError when the range does not fit.
  void* take(size_t nbytes);
  void give_back(void* address, size_t nbytes);

 private:
  static size_t size_class(size_t nbytes);
  void reserve();

  std::mutex mutex_;
  char* base_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
  std::unordered_map<size_t, std::vector<void*>> free_;
};

AddressSpace& addresses();

}  // namespace tpu
