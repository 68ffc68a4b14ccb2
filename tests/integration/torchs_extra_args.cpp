// What PyTorch's own profiler keeps of each operator to count its FLOPs from, in the order of their begins.
#include <ATen/record_function.h>
#include <torch/csrc/profiler/util.h>

#include <iomanip>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace {

std::mutex mutex;
std::string* kept = nullptr;
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

void write_word(std::ostream& out, const std::string& word) {
  out << '"' << std::hex << std::setfill('0');
  for (const unsigned char byte : word) out << std::setw(2) << static_cast<int>(byte);
  out << std::dec << '"';
}

void write_value(std::ostream& out, const c10::IValue& value) {
  if (value.isString()) return write_word(out, value.toStringRef());
  if (value.isInt()) { out << value.toInt(); return; }
  if (!value.isIntList()) { out << "null"; return; }
  const char* before = "[";
  for (const int64_t number : value.toIntVector()) out << before << number, before = ",";
  out << (*before == '[' ? "[]" : "]");
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  std::ostringstream line;
  line << "[\"" << fn.name() << "\",{";
  try {
    const char* before = "\"";
    for (const auto& [name, value] : torch::profiler::impl::saveExtraArgs(fn)) {
      line << before << name << "\":";
      write_value(line, value);
      before = ",\"";
    }
  } catch (...) {  // it asks what is no tensor for its sizes
  }
  line << "}]\n";
  const std::lock_guard lock(mutex);
  if (kept != nullptr) *kept += line.str();
  return nullptr;
}

}  // namespace

extern "C" void keep_extra_args() {
  const std::lock_guard lock(mutex);
  delete kept;
  kept = new std::string;
  handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start).needsInputs(true));
}

// A list of [name, arguments] a line, words as the hexadecimal digits of their bytes.
extern "C" const char* kept_extra_args() {
  at::removeCallback(handle);
  return kept->c_str();
}
