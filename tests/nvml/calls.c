#define _GNU_SOURCE
#include "calls.h"
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sessions, present[MAX_GPUS];
static double session_began;

device_t handle_of(int slot, int mig) { return (device_t)(uintptr_t)(0x10000 + slot * 0x100 + mig + 1); }

static int matches(const char *pattern, const char *call) { return !strcmp(pattern, "*") || !strcmp(pattern, call); }

static void sleep_us(int us) {
  struct timespec left = {us / 1000000, us % 1000000 * 1000};
  while (us > 0 && nanosleep(&left, &left)) {}
}

/* As a call that waits in the driver: nothing but SIGKILL ends it (or the fault's end). The thread is named by it. */
static void hang(double until) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  prctl(PR_SET_NAME, "nvml-hangs");
  while (unix_now() < until) sleep_us(10000);
  for (; until > 1e17;) pause();
  sigemptyset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
}

static int fault_of(const struct scenario *s, const char *call, int slot, int field, double now) {
  for (int i = 0; i < s->fault_count; i++) {
    const struct fault *fault = &s->faults[i];
    if (!matches(fault->call, call) || (fault->gpu >= 0 && fault->gpu != slot) || fault->field != field) continue;
    if (now < fault->from || now >= fault->until) continue;
    if (fault->action == HANG) hang(fault->until);
    if (fault->action == SEGV) raise(SIGSEGV);
    if (fault->action == EXIT) _exit(3);
    if (fault->action == GIVE_CODE) return fault->code;
  }
  return SUCCESS;
}

static void burn_us(int us) {
  struct timespec now;
  for (double until = -1; us > 0;) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double seconds = now.tv_sec + now.tv_nsec * 1e-9;
    if (until < 0) until = seconds + us * 1e-6;
    if (seconds >= until) break;
  }
}

static void wait_latency(const struct scenario *s, const char *call, int field) {
  const struct latency *found = NULL;
  for (int i = 0; i < s->latency_count; i++) {
    const struct latency *one = &s->latencies[i];
    if (one->field == field && (!strcmp(one->call, call) || (!found && !strcmp(one->call, "*")))) found = one;
  }
  if (found && found->busy) burn_us(found->us);
  else if (found) sleep_us(found->us);
}

/* While the driver is gone nothing works; after that only a session that began anew. */
static int driver_state(const struct scenario *s, double now, double began) {
  for (int i = 0; i < s->restart_count; i++) {
    if (now >= s->restarts[i].at && now < s->restarts[i].at + s->restarts[i].down) return DRIVER_NOT_LOADED;
    if (began < s->restarts[i].at && now >= s->restarts[i].at) return UNINITIALIZED;
  }
  return SUCCESS;
}

int enter(const char *call) {
  const struct scenario *s = scenario_now();
  wait_latency(s, call, -1);
  if (!sessions) return UNINITIALIZED;
  int code = driver_state(s, unix_now(), session_began);
  return code ? code : fault_of(s, call, -1, -1, unix_now());
}

int enter_device(const char *call, device_t handle, struct device *into) {
  const struct scenario *s = scenario_now();
  uintptr_t number = (uintptr_t)handle - 0x10000;
  int slot = (int)(number / 0x100), mig = (int)(number % 0x100) - 1;
  wait_latency(s, call, -1);
  double now = unix_now();
  if (!sessions) return UNINITIALIZED;
  int code = driver_state(s, now, session_began);
  if (code) return code;
  if (slot < 0 || slot >= s->gpu_count || mig >= s->gpus[slot].mig_count) return INVALID_ARGUMENT;
  code = fault_of(s, call, slot, -1, now);
  if (code) return code;
  const struct gpu *gpu = &s->gpus[slot];
  if (now < gpu->from || now >= gpu->until) return GPU_IS_LOST;
  *into = (struct device){s, gpu, mig < 0 ? NULL : &gpu->mig[mig], mig < 0 ? &gpu->steps : &gpu->mig[mig].steps, slot, now};
  if (into->mig && (gpu->mig_mode != 1 || now < into->mig->from || now >= into->mig->until)) return INVALID_ARGUMENT;
  return SUCCESS;
}

int enter_field(const char *call, int slot, int field) {
  wait_latency(scenario_now(), call, field);
  return fault_of(scenario_now(), call, slot, field, unix_now());
}

int begin_session(const char *call) {
  const struct scenario *s = scenario_now();
  wait_latency(s, call, -1);
  double now = unix_now();
  int code = driver_state(s, now, now);
  if (!code) code = fault_of(s, call, -1, -1, now);
  if (code) return code;
  pthread_mutex_lock(&lock);
  if (!sessions++) {
    session_began = now;
    for (int i = 0; i < MAX_GPUS; i++) present[i] = i < s->gpu_count && now >= s->gpus[i].from && now < s->gpus[i].until;
  }
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int end_session(void) {
  if (!sessions) return UNINITIALIZED;
  pthread_mutex_lock(&lock);
  sessions--;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int session_slots(int slots[MAX_GPUS]) {
  int count = 0;
  for (int i = 0; i < MAX_GPUS; i++)
    if (present[i]) slots[count++] = i;
  return count;
}
