// The extension module otel_recfn._native: each part adds its own functions and types.
#include "module.hpp"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "otel_recfn._native", "Recorder and encoders of otel-recfn.", -1, nullptr,
    nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  if (recfn::add_recorder(module) < 0 || recfn::add_chrome_encoder(module) < 0 || recfn::add_vector_state(module) < 0 ||
      recfn::add_sigterm(module) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
