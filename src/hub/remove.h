// Taking models out of our folder.
#ifndef QN_HUB_REMOVE_H
#define QN_HUB_REMOVE_H

#include "hub/stock.h"

// All files of a model of ours, what is left of its download, the vision tower if no other model of
// the folder can use it, and folders that are empty then. QN_ARGUMENT: another program keeps it.
// *bytes: of the files that are gone.
QN_MUST_CHECK qn_status qn_stock_remove(int64_t *bytes, const qn_stock *stock,
                                        const qn_stocked *model, const qn_places *places,
                                        qn_err *err);
// The same for a download that did not end.
QN_MUST_CHECK qn_status qn_unfinished_remove(int64_t *bytes, const qn_unfinished *download,
                                             const qn_places *places, qn_err *err);

#endif
