// A GPU that counts what is asked of it, in the place where PyTorch's profilers look for CUDA.
#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <chrono>
#include <memory>

namespace {

using torch::profiler::impl::ProfilerStubs;
using torch::profiler::impl::ProfilerVoidEventStub;

class FakeGpu final : public ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    if (device != nullptr) *device = 0;
    *event = std::make_shared<int>(recorded_.fetch_add(1));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    if (cpu_ns != nullptr) *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }
  float elapsed(const ProfilerVoidEventStub* begin, const ProfilerVoidEventStub* end) const override {
    return static_cast<float>(*static_cast<int*>(end->get()) - *static_cast<int*>(begin->get()));
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override { op(0); }
  void synchronize() const override {}

 private:
  mutable std::atomic<int> recorded_{0};
};

ProfilerStubs* replaced = nullptr;

}  // namespace

extern "C" void install_fake_gpu() {
  static FakeGpu fake;
  replaced = const_cast<ProfilerStubs*>(torch::profiler::impl::cudaStubs());
  torch::profiler::impl::registerCUDAMethods(&fake);
}

extern "C" void remove_fake_gpu() { torch::profiler::impl::registerCUDAMethods(replaced); }
