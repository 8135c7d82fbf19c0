/* What every call of the fake NVML does first: latency, faults, the library's own state. nvml_*.c use it. */
#ifndef STOKER_FAKE_NVML_CALLS_H
#define STOKER_FAKE_NVML_CALLS_H

#include "scenario.h"

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  TIMEOUT = 10,
  FUNCTION_NOT_FOUND = 13,
  GPU_IS_LOST = 15,
  VERSION_MISMATCH = 25,
  UNKNOWN = 999,
};

/* A device handle: 0x10000 + slot × 0x100 + (0: the GPU, else number of its MIG device + 1). */
typedef void *device_t;

struct device {
  const struct scenario *scenario;
  const struct gpu *gpu;
  const struct mig *mig; /* NULL: the GPU itself */
  const struct steps *steps;
  int slot;
  double now;
};

device_t handle_of(int slot, int mig);
/* Latency and faults of a call without a device. */
int enter(const char *call);
/* The same of a call on a device, and the device. */
int enter_device(const char *call, device_t handle, struct device *into);
/* Latency and fault of one field (nvmlDeviceGetFieldValues), metric or kind of sample; 0: none. */
int enter_field(const char *call, int slot, int field);
/* For nvmlInit: faults, then the GPUs that are there now. */
int begin_session(const char *call);
int end_session(void);
/* Slots of the GPUs that were there when the session began. */
int session_slots(int slots[MAX_GPUS]);

#define ENTER(handle)                                                                                                  \
  struct device d;                                                                                                     \
  int entered = enter_device(__func__, handle, &d);                                                                    \
  if (entered) return entered

#define VALUE(key) value_at(d.steps, K_##key, d.now)
/* Answers a number, or NOT_SUPPORTED if the GPU has none. */
#define GIVE(into, key, scale)                                                                                         \
  do {                                                                                                                 \
    double given = VALUE(key);                                                                                         \
    if (isnan(given)) return NOT_SUPPORTED;                                                                            \
    *(into) = (typeof(*(into)))(given * (scale));                                                                      \
  } while (0)
/* A call that answers one number. */
#define READING(call, type, key, scale)                                                                                \
  int call(device_t device, type *into) {                                                                              \
    ENTER(device);                                                                                                     \
    GIVE(into, key, scale);                                                                                            \
    return SUCCESS;                                                                                                    \
  }
#define MIG_ON (d.gpu->mig_mode == 1)

#endif
