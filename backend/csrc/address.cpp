#include "address.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

namespace tpu {

AddressSpace& addresses() {
  static auto* space = new AddressSpace();  // outlives every storage, so it is never destroyed
  return *space;
}

void AddressSpace::reserve() {
  // 16 TiB where the process may have it, less under a limited address space.
  for (size_t size = size_t(1) << 44; size >= size_t(1) << 28; size >>= 1) {
    void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) {
      base_ = static_cast<char*>(base);
      size_ = size;
      return;
    }
  }
  C10_THROW_ERROR(OutOfMemoryError, "tpu: cannot reserve address space for device storages "
                  "(256 MiB were refused); raise the limit on virtual memory (ulimit -v)");
}

size_t AddressSpace::size_class(size_t nbytes) {
  // Four classes per power of two, at least a cache page apart: at most a quarter is wasted.
  size_t step = 512;
  while (step * 8 <= nbytes) step *= 2;
  return (nbytes + step - 1) / step * step;
}

void* AddressSpace::take(size_t nbytes) {
  if (nbytes == 0) return nullptr;
  size_t size = nbytes < size_t(1) << 60 ? size_class(nbytes) : nbytes;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& ready = free_[size];
  if (!ready.empty()) {
    void* address = ready.back();
    ready.pop_back();
    return address;
  }
  if (base_ == nullptr) reserve();
  if (size > size_ - used_) {
    C10_THROW_ERROR(OutOfMemoryError,
                    "tpu: out of memory: a storage of " + std::to_string(nbytes) +
                        " bytes does not fit, " + std::to_string(used_) + " of " +
                        std::to_string(size_) + " bytes of address space are in use");
  }
  void* address = base_ + used_;
  used_ += size;
  return address;
}

void AddressSpace::give_back(void* address, size_t nbytes) {
  if (address == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  free_[size_class(nbytes)].push_back(address);
}

}  // namespace tpu
