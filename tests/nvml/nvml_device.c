/* The fake NVML's calls about the library and a device: identity, load, memory, power, clocks, links. */
#define _GNU_SOURCE
#include "calls.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return begin_session(__func__);
}

int nvmlInit_v2(void) { return begin_session(__func__); }

int nvmlShutdown(void) { return end_session(); }

const char *nvmlErrorString(int code) {
  switch (code) {
  case SUCCESS: return "Success";
  case GPU_IS_LOST: return "GPU is lost";
  case NOT_SUPPORTED: return "Not Supported";
  case DRIVER_NOT_LOADED: return "Driver Not Loaded";
  default: return "An error of the fake NVML";
  }
}

static int give_text(char *into, unsigned room, const char *text) {
  if (strlen(text) + 1 > room) return INSUFFICIENT_SIZE;
  strcpy(into, text);
  return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned room) {
  int code = enter(__func__);
  return code ? code : give_text(version, room, scenario_now()->driver);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned room) {
  int code = enter(__func__);
  return code ? code : give_text(version, room, "13.fake");
}

int nvmlSystemGetCudaDriverVersion(int *version) {
  int code = enter(__func__);
  if (!code) *version = scenario_now()->cuda;
  return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  int slots[MAX_GPUS], code = enter(__func__);
  if (!code) *count = session_slots(slots);
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
  int slots[MAX_GPUS];
  if ((int)index >= session_slots(slots)) return INVALID_ARGUMENT;
  *device = handle_of(slots[index], -1);
  ENTER(*device);
  return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
  int slots[MAX_GPUS], count = session_slots(slots);
  const struct scenario *s = scenario_now();
  for (int i = 0; i < count; i++) {
    for (int mig = -1; mig < s->gpus[slots[i]].mig_count; mig++) {
      if (strcmp(mig < 0 ? s->gpus[slots[i]].uuid : s->gpus[slots[i]].mig[mig].uuid, uuid)) continue;
      *device = handle_of(slots[i], mig);
      ENTER(*device);
      return SUCCESS;
    }
  }
  return NOT_FOUND;
}

int nvmlDeviceGetIndex(device_t device, unsigned *index) {
  ENTER(device);
  int slots[MAX_GPUS], count = session_slots(slots);
  for (int i = 0; i < count; i++)
    if (slots[i] == d.slot) *index = i;
  return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned room) {
  ENTER(device);
  return give_text(uuid, room, d.mig ? d.mig->uuid : d.gpu->uuid);
}

int nvmlDeviceGetName(device_t device, char *name, unsigned room) {
  ENTER(device);
  return give_text(name, room, d.mig ? d.mig->name : d.gpu->name);
}

int nvmlDeviceGetSerial(device_t device, char *serial, unsigned room) {
  ENTER(device);
  char text[32];
  snprintf(text, sizeof text, "16509230%05d", d.slot);
  return give_text(serial, room, text);
}

int nvmlDeviceGetVbiosVersion(device_t device, char *version, unsigned room) {
  ENTER(device);
  return give_text(version, room, "96.00.99.00.01");
}

int nvmlDeviceGetMinorNumber(device_t device, unsigned *number) {
  ENTER(device);
  *number = d.slot;
  return SUCCESS;
}

struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

static void give_pci(struct pci *pci, const char *bus) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", bus);
  snprintf(pci->legacy, sizeof pci->legacy, "%.15s", bus + 4);
  sscanf(bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}

int nvmlDeviceGetPciInfo_v3(device_t device, struct pci *pci) {
  ENTER(device);
  give_pci(pci, d.gpu->bus);
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
  ENTER(device);
  *major = d.gpu->cc_major;
  *minor = d.gpu->cc_minor;
  return SUCCESS;
}

struct utilization {
  unsigned gpu, memory;
};

/* As the driver's own window: the mean of the last sixth of a second. */
static double recent(struct device d, enum key key) { return integral(d.steps, key, d.now - 1 / 6.0, d.now) * 6; }

int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *rates) {
  ENTER(device);
  if (MIG_ON) return NOT_SUPPORTED;
  double busy = recent(d, K_busy), memory = recent(d, K_mem_busy);
  if (isnan(busy) || isnan(memory)) return NOT_SUPPORTED;
  *rates = (struct utilization){(unsigned)lround(busy), (unsigned)lround(memory)};
  return SUCCESS;
}

static int engine(struct device d, enum key key, unsigned *percent, unsigned *period_us) {
  double busy = recent(d, key);
  if (isnan(busy) || MIG_ON) return NOT_SUPPORTED;
  *percent = (unsigned)lround(busy);
  *period_us = 166667;
  return SUCCESS;
}

int nvmlDeviceGetEncoderUtilization(device_t device, unsigned *percent, unsigned *period_us) {
  ENTER(device);
  return engine(d, K_enc, percent, period_us);
}

int nvmlDeviceGetDecoderUtilization(device_t device, unsigned *percent, unsigned *period_us) {
  ENTER(device);
  return engine(d, K_dec, percent, period_us);
}

union value {
  double real;
  unsigned u32;
  unsigned long long u64;
  int i32;
};

struct sample {
  unsigned long long at_us;
  union value value;
};

#define SAMPLES 120

/* The driver's ring buffer: a mean every sample_s, the newest 120. */
int nvmlDeviceGetSamples(device_t device, unsigned kind, unsigned long long seen_us, unsigned *type, unsigned *count,
                         struct sample *samples) {
  ENTER(device);
  int fault = enter_field(__func__, d.slot, kind);
  enum key key = kind == 0 ? K_watts : kind == 1 ? K_busy : kind == 2 ? K_mem_busy : kind == 3 ? K_enc : K_dec;
  if (fault) return fault;
  if (kind > 4 || (MIG_ON && kind) || isnan(VALUE(watts)) || isnan(value_at(d.steps, key, d.now))) return NOT_SUPPORTED;
  double period = d.scenario->sample_s, newest = floor(d.now / period);
  unsigned given = 0, room = samples ? *count : SAMPLES;
  *type = 1;
  for (double n = newest - SAMPLES + 1; n <= newest && given < room; n++) {
    if (n * period * 1e6 <= (double)seen_us) continue;
    double mean = integral(d.steps, key, (n - 1) * period, n * period) / period;
    if (samples) {
      memset(&samples[given], 0, sizeof *samples);
      samples[given].at_us = (unsigned long long)llround(n * period * 1e6);
      samples[given].value.u32 = (unsigned)lround(mean * (key == K_watts ? 1000 : 1));
    }
    given++;
  }
  *count = samples ? given : SAMPLES;
  return given ? SUCCESS : NOT_FOUND;
}

struct memory {
  unsigned long long total, free, used;
};

struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

static unsigned long long used_of(struct device d) { return (unsigned long long)VALUE(used); }

int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory) {
  ENTER(device);
  unsigned long long total = d.mig ? d.mig->memory : d.gpu->memory, reserved = d.mig ? 0 : d.gpu->reserved;
  if (isnan(VALUE(used))) return NOT_SUPPORTED;
  *memory = (struct memory){total, total - reserved - used_of(d), reserved + used_of(d)};
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
  ENTER(device);
  if (!d.gpu->memory_v2) return FUNCTION_NOT_FOUND;
  if (memory->version != (sizeof *memory | 2 << 24)) return VERSION_MISMATCH;
  unsigned long long total = d.mig ? d.mig->memory : d.gpu->memory, reserved = d.mig ? 0 : d.gpu->reserved;
  if (isnan(VALUE(used))) return NOT_SUPPORTED;
  *memory = (struct memory_v2){memory->version, total, reserved, total - reserved - used_of(d), used_of(d)};
  return SUCCESS;
}

struct temperature {
  unsigned version, sensor;
  int celsius;
};

int nvmlDeviceGetTemperatureV(device_t device, struct temperature *temperature) {
  ENTER(device);
  if (temperature->version != (sizeof *temperature | 1 << 24)) return VERSION_MISMATCH;
  GIVE(&temperature->celsius, temp, 1);
  return SUCCESS;
}

int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius) {
  (void)sensor;
  ENTER(device);
  GIVE(celsius, temp, 1);
  return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(device_t device, unsigned kind, unsigned *celsius) {
  ENTER(device);
  static const enum key keys[] = {K_t_shutdown, K_t_slowdown, K_t_mem_max, K_t_gpu_max};
  if (kind > 3 || isnan(value_at(d.steps, keys[kind], d.now))) return NOT_SUPPORTED;
  *celsius = (unsigned)value_at(d.steps, keys[kind], d.now);
  return SUCCESS;
}

struct margin {
  unsigned version;
  int celsius;
};

int nvmlDeviceGetMarginTemperature(device_t device, struct margin *margin) {
  ENTER(device);
  GIVE(&margin->celsius, margin, 1);
  return SUCCESS;
}

READING(nvmlDeviceGetFanSpeed, unsigned, fan, 1)

int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts) {
  ENTER(device);
  if (d.mig) return NOT_SUPPORTED;
  GIVE(milliwatts, watts, 1000);
  return SUCCESS;
}

READING(nvmlDeviceGetEnforcedPowerLimit, unsigned, limit, 1000)
READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, limit_default, 1000)

int nvmlDeviceGetPowerManagementLimitConstraints(device_t device, unsigned *least, unsigned *most) {
  ENTER(device);
  GIVE(least, limit_min, 1000);
  GIVE(most, limit_max, 1000);
  return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *millijoules) {
  ENTER(device);
  if (!d.gpu->energy || d.mig) return NOT_SUPPORTED;
  double tick = d.gpu->energy_tick_s, until = tick > 0 ? floor(d.now / tick) * tick : d.now;
  double joules = integral(d.steps, K_watts, counters_since(d.scenario, d.gpu, d.now), until);
  if (isnan(joules)) return NOT_SUPPORTED;
  double offset = counters_since(d.scenario, d.gpu, d.now) > d.gpu->energy_since ? 0 : d.gpu->energy_offset_mj;
  *millijoules = (unsigned long long)(joules * 1000 + offset);
  return SUCCESS;
}

static const enum key clocks[] = {K_gr_clock, K_sm_clock, K_mem_clock, K_video_clock};
static const enum key clocks_max[] = {K_gr_clock_max, K_sm_clock_max, K_mem_clock_max, K_video_clock_max};

static int clock_of(struct device d, const enum key *keys, unsigned kind, unsigned *megahertz) {
  if (kind > 3) return INVALID_ARGUMENT;
  if (isnan(value_at(d.steps, keys[kind], d.now))) return NOT_SUPPORTED;
  *megahertz = (unsigned)value_at(d.steps, keys[kind], d.now);
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(device_t device, unsigned kind, unsigned *megahertz) {
  ENTER(device);
  return clock_of(d, clocks, kind, megahertz);
}

int nvmlDeviceGetMaxClockInfo(device_t device, unsigned kind, unsigned *megahertz) {
  ENTER(device);
  return clock_of(d, clocks_max, kind, megahertz);
}

READING(nvmlDeviceGetPerformanceState, unsigned, pstate, 1)
READING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons, 1)
READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons, 1)
READING(nvmlDeviceGetPcieReplayCounter, unsigned, pcie_replay, 1)

/* KB/s over the last 20 ms; the real one blocks for them. */
int nvmlDeviceGetPcieThroughput(device_t device, unsigned kind, unsigned *kilobytes) {
  ENTER(device);
  enum key key = kind ? K_pcie_rx : K_pcie_tx;
  if (kind > 1 || isnan(value_at(d.steps, key, d.now))) return NOT_SUPPORTED;
  *kilobytes = (unsigned)(integral(d.steps, key, d.now - 0.02, d.now) / 0.02 / 1000);
  return SUCCESS;
}

READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie_gen, 1)
READING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie_gen_max, 1)
READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie_width, 1)
READING(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie_width_max, 1)

int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *active) {
  ENTER(device);
  if (isnan(VALUE(nvlinks))) return NOT_SUPPORTED;
  if (link >= VALUE(nvlinks)) return INVALID_ARGUMENT;
  *active = link < VALUE(nvlinks_up);
  return SUCCESS;
}

/* 0: a GPU, 2: a switch. */
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t device, unsigned link, unsigned *type) {
  ENTER(device);
  if (isnan(VALUE(nvlinks)) || link >= VALUE(nvlinks_up)) return NOT_SUPPORTED;
  *type = VALUE(nvlink_to) < 0 ? 2 : 0;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t device, unsigned link, struct pci *pci) {
  ENTER(device);
  int to = (int)VALUE(nvlink_to);
  if (isnan(VALUE(nvlinks)) || link >= VALUE(nvlinks_up)) return NOT_SUPPORTED;
  if (to >= d.scenario->gpu_count) return INVALID_ARGUMENT;
  give_pci(pci, to < 0 ? "00000000:00:00.0" : d.scenario->gpus[to].bus);
  return SUCCESS;
}
