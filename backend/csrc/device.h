// What torch asks of a device: current index, streams, events, generators, pinned memory.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>

namespace tpu {

c10::DeviceIndex current_device();
// Raise for an index that this process has no device for.
void check_device(c10::DeviceIndex device);
void set_current_device(c10::DeviceIndex device);

// Counter-based: a draw uses the seed as key and advances the offset by the blocks it consumed.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  // The offset before a draw of `blocks`, which is taken.
  uint64_t advance(uint64_t blocks);

 private:
  Generator* clone_impl() const override;
  uint64_t seed_ = 67280421310721;  // torch's default seed
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

// Register guard and hooks with torch; once, when the core is loaded.
void register_device();

}  // namespace tpu
