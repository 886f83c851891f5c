#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>

#include "cell.h"
#include "recorder.h"
#include "stream.h"

namespace tpu {

namespace {

thread_local c10::DeviceIndex t_device = 0;

c10::DeviceIndex device_count() { return process().enabled ? process().device_count.load() : 0; }

// ---- Pinned host memory: page-aligned host memory that we remember handing out. ----

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = nullptr;
    if (nbytes != 0 && posix_memalign(&data, 4096, nbytes) != 0) {
      C10_THROW_ERROR(OutOfMemoryError,
                      "tpu: cannot allocate " + std::to_string(nbytes) + " bytes of pinned memory");
    }
    if (data != nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      ranges_[data] = nbytes;
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool contains(const void* address) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return false;
    auto range = std::prev(after);
    return static_cast<const char*>(address) < static_cast<const char*>(range->first) + range->second;
  }
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }

 private:
  static void release(void* data) {
    auto& self = instance();
    {
      std::lock_guard<std::mutex> lock(self.mutex_);
      self.ranges_.erase(data);
    }
    free(data);
  }
  mutable std::mutex mutex_;
  std::map<const void*, size_t> ranges_;
};

// ---- Hooks and guard ----

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return process().ready; }
  void init() const override { ensure_ready(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    c10::DeviceIndex before = t_device;
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? t_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedAllocator::instance().contains(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::instance(); }
  at::Device getDeviceFromPtr(void*) const override { return {c10::kPrivateUse1, t_device}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? t_device : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? t_device : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, t_device}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) t_device = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    if (device.has_index()) set_current_device(device.index());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getStream(c10::Device device) const noexcept override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, indexed(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return new_stream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return exchange_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_idle(stream.device_index());
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize(device < 0 ? t_device : device);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    record_event(event, stream, flag);
  }
  void block(void* event, const c10::Stream&) const override { block_on_event(event); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    destroy_event(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_ms(start, end);
  }
};

}  // namespace

c10::DeviceIndex current_device() { return t_device; }

void check_device(c10::DeviceIndex device) {
  int count = process().device_count;
  TORCH_CHECK(device >= 0 && (device < count || count == 0), "tpu: invalid device ordinal tpu:",
              int(device), "; this process has ", count, " tpu device(s), tpu:0 to tpu:", count - 1);
}

void set_current_device(c10::DeviceIndex device) {
  check_device(device);
  t_device = device;
}

// ---- Generator ----

Generator::Generator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::kPrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}
void Generator::set_offset(uint64_t offset) { offset_ = offset; }
uint64_t Generator::get_offset() const { return offset_; }
uint64_t Generator::current_seed() const { return seed_; }
uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return seed_;
}
uint64_t Generator::advance(uint64_t blocks) {
  uint64_t before = offset_;
  offset_ += blocks;
  return before;
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  auto state = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt,
                                     std::nullopt);
  auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
  words[0] = seed_;
  words[1] = offset_;
  return state.getIntrusivePtr();
}

void Generator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 16, "RNG state of a tpu generator has 16 bytes (seed, offset), got ",
              state.numel());
  auto* words = static_cast<const uint64_t*>(state.data());
  seed_ = words[0];
  offset_ = words[1];
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto* generators = new std::array<at::Generator, kMaxDevices>();
  memory_use(device);  // checks the index
  std::lock_guard<std::mutex> lock(mutex);
  auto& generator = (*generators)[device];
  if (!generator.defined()) generator = at::make_generator<Generator>(device);
  return generator;
}

void register_device() {
  c10::SetAllocator(c10::kPrivateUse1, allocator());
  static auto* hooks = new Hooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
  static auto* guard = new Guard();
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kPrivateUse1)].store(guard);
}

}  // namespace tpu
