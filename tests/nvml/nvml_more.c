/* The fake NVML's calls about memory errors, fields, processes, MIG, GPM and events. */
#define _GNU_SOURCE
#include "calls.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter, unsigned long long *errors) {
  ENTER(device);
  static const enum key keys[] = {K_ecc_corrected_volatile, K_ecc_corrected_aggregate, K_ecc_uncorrected_volatile,
                                  K_ecc_uncorrected_aggregate};
  double value = type > 1 || counter > 1 ? NAN : value_at(d.steps, keys[type * 2 + counter], d.now);
  if (isnan(value)) return NOT_SUPPORTED;
  *errors = (unsigned long long)value;
  return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
  ENTER(device);
  GIVE(corrected, remap_corrected, 1);
  GIVE(uncorrected, remap_uncorrected, 1);
  GIVE(pending, remap_pending, 1);
  GIVE(failed, remap_failed, 1);
  return SUCCESS;
}

READING(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, retired_pending, 1)
READING(nvmlDeviceGetPersistenceMode, unsigned, persistence, 1)

int nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending) {
  ENTER(device);
  GIVE(current, ecc_mode, 1);
  GIVE(pending, ecc_mode_pending, 1);
  return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(device_t device, unsigned banks[5]) {
  ENTER(device);
  static const enum key keys[] = {K_banks_max, K_banks_high, K_banks_partial, K_banks_low, K_banks_none};
  for (int i = 0; i < 5; i++) {
    double value = value_at(d.steps, keys[i], d.now);
    if (isnan(value)) return NOT_SUPPORTED;
    banks[i] = (unsigned)value;
  }
  return SUCCESS;
}

struct sram {
  unsigned version;
  unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected, parity, secded, corrected;
  unsigned long long l2, sm, pcie, mcu, other;
  unsigned threshold;
};

int nvmlDeviceGetSramEccErrorStatus(device_t device, struct sram *sram) {
  ENTER(device);
  if (sram->version != (sizeof *sram | 1 << 24)) return VERSION_MISMATCH;
  GIVE(&sram->aggregate_parity, sram_parity, 1);
  GIVE(&sram->aggregate_secded, sram_secded, 1);
  GIVE(&sram->aggregate_corrected, sram_corrected, 1);
  GIVE(&sram->l2, sram_l2, 1);
  GIVE(&sram->sm, sram_sm, 1);
  sram->pcie = sram->mcu = sram->other = 0;
  GIVE(&sram->threshold, sram_threshold, 1);
  return SUCCESS;
}

struct fabric {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique;
  unsigned char state;
  unsigned health;
};

int nvmlDeviceGetGpuFabricInfoV(device_t device, struct fabric *fabric) {
  ENTER(device);
  if (fabric->version != (sizeof *fabric | 2 << 24)) return VERSION_MISMATCH;
  GIVE(&fabric->state, fabric_state, 1);
  GIVE(&fabric->status, fabric_status, 1);
  return SUCCESS;
}

struct field_value {
  unsigned id, scope;
  long long at_us, latency_us;
  unsigned type, code;
  union {
    double real;
    unsigned u32;
    unsigned long long u64;
    int i32;
  } value;
};

static double counted(struct device d, enum key key) {
  return integral(d.steps, key, counters_since(d.scenario, d.gpu, d.now), d.now);
}

static double throttled_ns(struct device d, unsigned long long mask) {
  if (isnan(VALUE(reasons))) return NAN;
  return seconds_with_reason(d.steps, mask, counters_since(d.scenario, d.gpu, d.now), d.now) * 1e9;
}

/* Value types: 1 unsigned int, 3 unsigned long long, 5 int. */
static double field_number(struct device d, unsigned id, unsigned scope, unsigned *type) {
  int all_links = scope == ~0u;
  *type = 3;
  switch (id) {
  case 38: return VALUE(nvlink_crc);
  case 52: return VALUE(nvlink_replay);
  case 59: return VALUE(nvlink_recovery);
  case 74: return throttled_ns(d, 0x4);
  case 76: return throttled_ns(d, 0x10);
  case 82: *type = 1; return VALUE(mem_temp);
  case 90: *type = 1; return VALUE(nvlinks_up) > 0 ? VALUE(nvlink_mbps) : NAN;
  case 91: *type = 1; return VALUE(nvlinks);
  case 138: return d.gpu->nvlink5 || !all_links ? NAN : floor(counted(d, K_nvlink_tx) / 1024);
  case 139: return d.gpu->nvlink5 || !all_links ? NAN : floor(counted(d, K_nvlink_rx) / 1024);
  case 164: *type = 1; return scope < VALUE(nvlinks_up) ? VALUE(nvlink_mbps) : NAN;
  case 185: *type = 1; return scope == 0 ? round(integral(d.steps, K_watts, d.now - 1, d.now) * 1000) : NAN;
  case 186: *type = 1; return scope == 0 ? VALUE(watts) * 1000 : NAN;
  case 187: *type = 1; return VALUE(limit_min) * 1000;
  case 188: *type = 1; return VALUE(limit_max) * 1000;
  case 189: *type = 1; return VALUE(limit_default) * 1000;
  case 190: *type = 1; return VALUE(limit) * 1000;
  case 193: *type = 5; return VALUE(tl_shutdown);
  case 194: *type = 5; return VALUE(tl_slowdown);
  case 195: *type = 5; return VALUE(tl_mem_max);
  case 196: *type = 5; return VALUE(tl_gpu_max);
  case 197: *type = 1; return fmod(counted(d, K_pcie_tx), 4294967296.0);
  case 198: *type = 1; return fmod(counted(d, K_pcie_rx), 4294967296.0);
  case 202: return d.gpu->nvlink5 && !all_links ? floor(counted(d, K_nvlink_tx) / VALUE(nvlinks)) : NAN;
  case 204: return d.gpu->nvlink5 && !all_links ? floor(counted(d, K_nvlink_rx) / VALUE(nvlinks)) : NAN;
  case 230: *type = 1; return VALUE(recovery);
  case 269: return throttled_ns(d, 0x20);
  case 270: return throttled_ns(d, 0x40);
  case 271: return throttled_ns(d, 0x80);
  default: return NAN;
  }
}

/* The real one may write one entry past an array that asks for NVLink: this one does, to catch who leaves no room. */
int nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values) {
  ENTER(device);
  int nvlink = 0;
  for (int i = 0; i < count; i++) {
    struct field_value *one = &values[i];
    double number = field_number(d, one->id, one->scope, &one->type);
    nvlink |= one->id == 138 || one->id == 139 || one->id == 202 || one->id == 204;
    one->at_us = (long long)(d.now * 1e6);
    one->latency_us = 1;
    one->code = enter_field(__func__, d.slot, one->id);
    if (!one->code && isnan(number)) one->code = NOT_SUPPORTED;
    if (one->code) continue;
    if (one->type == 5) one->value.i32 = (int)number;
    else if (one->type == 1) one->value.u32 = (unsigned)number;
    else one->value.u64 = (unsigned long long)number;
  }
  if (nvlink) values[count].code = UNKNOWN;
  return SUCCESS;
}

struct process_info {
  unsigned pid;
  unsigned long long memory;
  unsigned gi, ci;
};

static void list_processes(const struct step *step, const struct mig *mig, struct process_info *into, unsigned room,
                           unsigned *given) {
  for (int i = 0; i < step->process_count; i++, (*given)++)
    if (into && *given < room)
      into[*given] = (struct process_info){step->processes[i].pid, step->processes[i].memory, mig ? mig->gi : ~0u, mig ? mig->ci : ~0u};
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, struct process_info *into) {
  ENTER(device);
  unsigned room = *count, given = 0;
  list_processes(step_at(d.steps, d.now), d.mig, into, room, &given);
  for (int i = 0; !d.mig && MIG_ON && i < d.gpu->mig_count; i++) {
    const struct mig *mig = &d.gpu->mig[i];
    if (d.now >= mig->from && d.now < mig->until) list_processes(step_at(&mig->steps, d.now), mig, into, room, &given);
  }
  *count = given;
  return given > room || (given && !into) ? INSUFFICIENT_SIZE : SUCCESS;
}

struct process_sample {
  unsigned pid;
  unsigned long long at_us;
  unsigned sm, memory, encoder, decoder;
};

/* One sample a process each sixth of a second, of the last second; as the driver, NOT_FOUND where there are none. */
int nvmlDeviceGetProcessUtilization(device_t device, struct process_sample *into, unsigned *count, unsigned long long seen_us) {
  ENTER(device);
  if (MIG_ON) return NOT_SUPPORTED;
  unsigned room = *count, given = 0;
  for (double n = floor(d.now * 6) - 5; n <= floor(d.now * 6); n++) {
    const struct step *step = step_at(d.steps, n / 6);
    if (n / 6 * 1e6 <= (double)seen_us) continue;
    for (int i = 0; i < step->process_count; i++, given++)
      if (into && given < room)
        into[given] = (struct process_sample){step->processes[i].pid, (unsigned long long)(n / 6 * 1e6),
                                              (unsigned)lround(step->processes[i].sm), 0, 0, 0};
  }
  *count = given;
  if (!given) return NOT_FOUND;
  return given > room || !into ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
  ENTER(device);
  if (d.gpu->mig_mode < 0) return NOT_SUPPORTED;
  *current = *pending = d.gpu->mig_mode;
  return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count) {
  ENTER(device);
  *count = d.gpu->mig_mode < 0 ? 0 : d.gpu->mig_slices;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *mig) {
  ENTER(device);
  unsigned seen = 0;
  for (int i = 0; i < d.gpu->mig_count && d.gpu->mig_mode == 1; i++) {
    if (d.now < d.gpu->mig[i].from || d.now >= d.gpu->mig[i].until || seen++ != index) continue;
    *mig = handle_of(d.slot, i);
    return SUCCESS;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t mig, device_t *device) {
  ENTER(mig);
  *device = handle_of(d.slot, -1);
  return d.mig ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(device_t mig, unsigned *id) {
  ENTER(mig);
  if (!d.mig) return INVALID_ARGUMENT;
  *id = d.mig->gi;
  return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(device_t mig, unsigned *id) {
  ENTER(mig);
  if (!d.mig) return INVALID_ARGUMENT;
  *id = d.mig->ci;
  return SUCCESS;
}

struct attributes {
  unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, slices, ci_slices;
  unsigned long long memory_mib;
};

int nvmlDeviceGetAttributes_v2(device_t mig, struct attributes *attributes) {
  ENTER(mig);
  if (!d.mig) return INVALID_ARGUMENT;
  memset(attributes, 0, sizeof *attributes);
  attributes->slices = d.mig->slices;
  attributes->ci_slices = d.mig->ci_slices;
  attributes->memory_mib = d.mig->memory >> 20;
  return SUCCESS;
}

struct gpm_sample {
  double at;
  int slot, gi;
};

struct gpm_metric {
  unsigned id, code;
  double value;
  char *names[3];
};

struct gpm_get {
  unsigned version, count;
  struct gpm_sample *first, *second;
  struct gpm_metric metrics[];
};

struct gpm_support {
  unsigned version, supported;
};

int nvmlGpmQueryDeviceSupport(device_t device, struct gpm_support *support) {
  ENTER(device);
  support->supported = d.gpu->gpm;
  return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
  int code = enter(__func__);
  if (!code) *sample = calloc(1, sizeof **sample + 16384); /* about what a real one takes */
  return code;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
  free(sample);
  return SUCCESS;
}

int nvmlGpmSampleGet(device_t device, struct gpm_sample *sample) {
  ENTER(device);
  if (!d.gpu->gpm) return NOT_SUPPORTED;
  *sample = (struct gpm_sample){d.now, d.slot, -1};
  return SUCCESS;
}

int nvmlGpmMigSampleGet(device_t device, unsigned gi, struct gpm_sample *sample) {
  ENTER(device);
  if (!d.gpu->gpm) return NOT_SUPPORTED;
  for (int i = 0; i < d.gpu->mig_count; i++)
    if (MIG_ON && d.gpu->mig[i].gi == gi && d.now >= d.gpu->mig[i].from && d.now < d.gpu->mig[i].until) {
      *sample = (struct gpm_sample){d.now, d.slot, (int)gi};
      return SUCCESS;
    }
  return INVALID_ARGUMENT;
}

static const struct steps *gpm_steps(const struct scenario *s, const struct gpm_sample *sample) {
  const struct gpu *gpu = &s->gpus[sample->slot];
  for (int i = 0; i < gpu->mig_count; i++)
    if ((int)gpu->mig[i].gi == sample->gi) return &gpu->mig[i].steps;
  return &gpu->steps;
}

/* Means between two samples in percent; less than 100 ms apart they are no numbers. */
int nvmlGpmMetricsGet(struct gpm_get *get) {
  int code = enter(__func__);
  if (code) return code;
  if (get->version != 1) return VERSION_MISMATCH;
  const struct scenario *s = scenario_now();
  const struct gpm_sample *a = get->first, *b = get->second;
  if (a->slot != b->slot || a->gi != b->gi || b->slot >= s->gpu_count) return INVALID_ARGUMENT;
  for (unsigned i = 0; i < get->count; i++) {
    struct gpm_metric *one = &get->metrics[i];
    static const struct {
      unsigned id;
      enum key key;
    } known[] = {{1, K_gfx}, {2, K_sm}, {3, K_occ}, {5, K_tensor}, {10, K_dram}, {11, K_fp64}, {12, K_fp32}, {13, K_fp16},
                 {20, K_pcie_tx}, {21, K_pcie_rx}}; /* those two in MiB/s */
    one->code = enter_field(__func__, b->slot, one->id);
    if (one->code) continue;
    one->code = NOT_SUPPORTED;
    for (unsigned k = 0; k < sizeof known / sizeof *known; k++) {
      if (known[k].id != one->id) continue;
      double sum = integral(gpm_steps(s, b), known[k].key, a->at, b->at);
      one->code = isnan(sum) ? NOT_SUPPORTED : SUCCESS;
      one->value = b->at - a->at < 0.1 ? NAN : sum / (b->at - a->at) / (one->id >= 20 ? 1048576 : 1);
    }
  }
  return SUCCESS;
}

#define DELIVERED 256

struct event_set {
  double since;
  unsigned long long types[MAX_GPUS];
  int count;
  struct xid delivered[DELIVERED];
};

struct event_data {
  device_t device;
  unsigned long long type, data;
  unsigned gi, ci;
};

int nvmlEventSetCreate(struct event_set **set) {
  int code = enter(__func__);
  if (code) return code;
  *set = calloc(1, sizeof **set);
  (*set)->since = unix_now();
  return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set) {
  free(set);
  return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types) {
  ENTER(device);
  *types = 0x8 | 0x100 | 0x4000 | 0x8000;
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, struct event_set *set) {
  ENTER(device);
  set->types[d.slot] |= types;
  return SUCCESS;
}

static int was_delivered(const struct event_set *set, const struct xid *xid) {
  for (int i = 0; i < set->count && i < DELIVERED; i++)
    if (set->delivered[i].at == xid->at && set->delivered[i].gpu == xid->gpu && set->delivered[i].code == xid->code) return 1;
  return 0;
}

/* What happened before the set was made is not reported, as with the real one. */
int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms) {
  double end = unix_now() + timeout_ms / 1000.0;
  do {
    int code = enter(__func__);
    if (code) return code;
    const struct scenario *s = scenario_now();
    for (int i = 0; i < s->xid_count; i++) {
      const struct xid *xid = &s->xids[i];
      if (xid->gpu < 0 || xid->gpu >= MAX_GPUS || !(set->types[xid->gpu] & xid->type)) continue;
      if (xid->at < set->since || xid->at > unix_now() || was_delivered(set, xid)) continue;
      set->delivered[set->count++ % DELIVERED] = *xid;
      *data = (struct event_data){handle_of(xid->gpu, -1), xid->type, xid->code, ~0u, ~0u};
      return SUCCESS;
    }
    struct timespec pause = {0, 100000000};  // real drivers sleep until there is one
    nanosleep(&pause, NULL);
  } while (unix_now() < end);
  return TIMEOUT;
}
