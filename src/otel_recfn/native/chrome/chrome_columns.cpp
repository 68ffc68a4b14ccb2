#include "chrome/chrome_columns.hpp"

namespace recfn {

bool ChromeColumns::take(PyObject* batch) {
#define RECFN_TAKE(type, name, empty) name.take(batch, #name) &&
#define RECFN_SIZE(type, name, empty) name.size(),
  return RECFN_COLUMNS(RECFN_TAKE) equally_long({RECFN_COLUMNS(RECFN_SIZE)});
#undef RECFN_SIZE
#undef RECFN_TAKE
}

}  // namespace recfn
