// The device `ref`: plans run by plain loops on one thread.
//
// It follows docs/numbers.md to the letter and gives the same bits as every other device, in layouts
// that are as simple as they can be. It is slow: its worth is that other devices can be compared with
// it. (The float32 interpreter of graphs is another thing: ir/ref.h.)
#ifndef QN_BACKENDS_REF_REF_DEVICE_H
#define QN_BACKENDS_REF_REF_DEVICE_H

#include "backends/device.h"

extern const qn_device_kind qn_ref_device;

#endif
