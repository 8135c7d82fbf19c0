/* The scenario file of the fake NVML: what each GPU does at each moment. Owns reading it; nvml.c answers from it.
 *
 * Every value is a step function of unix time: a step holds from its `at` until the next one's. NAN: the GPU has no such
 * thing (NVML_ERROR_NOT_SUPPORTED).
 */
#ifndef STOKER_FAKE_NVML_SCENARIO_H
#define STOKER_FAKE_NVML_SCENARIO_H

#define MAX_GPUS 16
#define MAX_MIG 8
#define TEXT 96

#define KEYS(X)                                                                                                        \
  X(watts, 75) X(busy, 0) X(mem_busy, 0) X(enc, 0) X(dec, 0) X(used, 0) X(sm, 0) X(occ, 0) X(tensor, 0) X(dram, 0)     \
  X(gfx, 0) X(fp16, 0) X(fp32, 0) X(fp64, 0) X(temp, 35) X(mem_temp, 38) X(margin, 50) X(fan, NAN)                     \
  X(sm_clock, 1980) X(mem_clock, 3201) X(gr_clock, 1980) X(video_clock, 1500) X(sm_clock_max, 1980)                    \
  X(mem_clock_max, 3201) X(gr_clock_max, 1980) X(video_clock_max, 1545) X(pstate, 0) X(reasons, 1)                     \
  X(limit, 700) X(limit_default, 700) X(limit_min, 200) X(limit_max, 700)                                              \
  X(t_shutdown, NAN) X(t_slowdown, NAN) X(t_mem_max, NAN) X(t_gpu_max, NAN)                                            \
  X(tl_shutdown, -7) X(tl_slowdown, -2) X(tl_mem_max, 0) X(tl_gpu_max, 0)                                              \
  X(pcie_tx, 0) X(pcie_rx, 0) X(pcie_replay, 0) X(pcie_gen, 5) X(pcie_gen_max, 5) X(pcie_width, 16)                    \
  X(pcie_width_max, 16) X(nvlink_tx, 0) X(nvlink_rx, 0) X(nvlinks, 18) X(nvlinks_up, 18) X(nvlink_replay, 0)           \
  X(nvlink_to, -1) X(nvlink_mbps, 26562)                                                                               \
  X(nvlink_recovery, 0) X(nvlink_crc, 0) X(ecc_corrected_volatile, 0) X(ecc_uncorrected_volatile, 0)                   \
  X(ecc_corrected_aggregate, 0) X(ecc_uncorrected_aggregate, 0) X(remap_corrected, 0) X(remap_uncorrected, 0)          \
  X(remap_pending, 0) X(remap_failed, 0) X(retired_pending, NAN) X(recovery, 0)     \
  X(fabric_state, NAN) X(fabric_status, 0) X(banks_max, 640) X(banks_high, 0) X(banks_partial, 0) X(banks_low, 0)      \
  X(banks_none, 0) X(sram_corrected, 0) X(sram_parity, 0) X(sram_secded, 0) X(sram_l2, 0) X(sram_sm, 0)                \
  X(sram_threshold, 0) X(ecc_mode, 1) X(ecc_mode_pending, 1) X(persistence, 1)

enum key {
#define X(name, value) K_##name,
  KEYS(X)
#undef X
  KEY_COUNT
};

struct process {
  unsigned pid;
  unsigned long long memory;
  double sm;
};

struct step {
  double at;
  double v[KEY_COUNT];
  int process_count;
  struct process *processes;
};

struct steps {
  int count;
  struct step *list;
};

struct mig {
  char uuid[TEXT], name[TEXT];
  unsigned gi, ci, slices, ci_slices;
  unsigned long long memory;
  double from, until;
  struct steps steps;
};

struct gpu {
  char uuid[TEXT], name[TEXT], bus[TEXT];
  int cc_major, cc_minor, gpm, energy, mig_mode, mig_slices, memory_v2, nvlink5;
  unsigned long long memory, reserved;
  double from, until, energy_since, energy_offset_mj, energy_tick_s;
  struct steps steps;
  int mig_count;
  struct mig mig[MAX_MIG];
};

enum action { GIVE_CODE, HANG, SEGV, EXIT };

struct fault {
  char call[TEXT];
  int gpu, field, code;
  enum action action;
  double from, until;
};

struct xid {
  int gpu;
  double at;
  unsigned long long code, type;
};

struct latency {
  char call[TEXT];
  int us, field, busy;
};

struct restart {
  double at, down;
};

struct scenario {
  char driver[TEXT];
  int cuda, no_init;
  double sample_s;
  int gpu_count, fault_count, xid_count, latency_count, restart_count;
  struct gpu *gpus;
  struct fault *faults;
  struct xid *xids;
  struct latency *latencies;
  struct restart *restarts;
};

/* The newest scenario: read again when the file was replaced. Never NULL; without a file there are no GPUs. */
const struct scenario *scenario_now(void);

double unix_now(void);
/* Value at a moment, and integral over [from, until) of a value; NAN if it was not known at the end. */
double value_at(const struct steps *steps, enum key key, double at);
double integral(const struct steps *steps, enum key key, double from, double until);
/* Seconds in [from, until) in which all bits of mask were set in `reasons`. */
double seconds_with_reason(const struct steps *steps, unsigned long long mask, double from, double until);
const struct step *step_at(const struct steps *steps, double at);
/* When counters began: the newest driver restart's end, else the GPU's own. */
double counters_since(const struct scenario *scenario, const struct gpu *gpu, double now);

#endif
