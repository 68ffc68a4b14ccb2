#include "chrome/chrome_columns.hpp"

namespace recfn {

bool ChromeColumns::take(PyObject* batch) {
#define RECFN_TAKE(type, name, ...) name.take(batch, #name) &&
#define RECFN_SIZE(type, name, ...) name.size(),
  return RECFN_EACH_COLUMN(RECFN_TAKE) equally_long({RECFN_EACH_COLUMN(RECFN_SIZE)});
#undef RECFN_SIZE
#undef RECFN_TAKE
}

}  // namespace recfn
