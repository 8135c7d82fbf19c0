/* Reads the scenario file ($STOKER_FAKE_NVML, else scenario.txt beside the library as it was loaded): a record a line, its fields tab-separated `name=value`. */
#define _GNU_SOURCE
#include "scenario.h"
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define FOREVER 1e18

static const char *key_names[KEY_COUNT] = {
#define X(name, value) #name,
    KEYS(X)
#undef X
};
static const double key_defaults[KEY_COUNT] = {
#define X(name, value) value,
    KEYS(X)
#undef X
};

double unix_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static void refuse(const char *what, const char *line) {
  fprintf(stderr, "fake NVML: %s in its scenario: %s\n", what, line);
  abort();
}

/* One field's text, or the default. */
static const char *field(char **fields, int count, const char *name, const char *otherwise) {
  size_t length = strlen(name);
  for (int i = 0; i < count; i++)
    if (!strncmp(fields[i], name, length) && fields[i][length] == '=') return fields[i] + length + 1;
  return otherwise;
}

static double number(char **fields, int count, const char *name, double otherwise) {
  const char *text = field(fields, count, name, NULL);
  return text ? (strcmp(text, "-") ? atof(text) : NAN) : otherwise;
}

static unsigned long long whole(char **fields, int count, const char *name, unsigned long long otherwise) {
  const char *text = field(fields, count, name, NULL);
  return text ? strtoull(text, NULL, 0) : otherwise;
}

static void text(char **fields, int count, const char *name, const char *otherwise, char *into) {
  snprintf(into, TEXT, "%s", field(fields, count, name, otherwise));
}

#define GROW(list, count) ((list) = realloc((list), ((count) + 1) * sizeof(*(list))), &(list)[(count)++])

static struct step *add_step(struct steps *steps, double at) {
  struct step *step = GROW(steps->list, steps->count);
  if (steps->count == 1) {
    memset(step, 0, sizeof *step);
    memcpy(step->v, key_defaults, sizeof key_defaults);
  } else {
    *step = steps->list[steps->count - 2];
  }
  step->at = at;
  return step;
}

/* Sets what the line names; the rest stays as in the step before. `processes=pid:bytes:sm,…` */
static void fill_step(struct step *step, char **fields, int count) {
  for (int key = 0; key < KEY_COUNT; key++) step->v[key] = number(fields, count, key_names[key], step->v[key]);
  const char *given = field(fields, count, "processes", NULL);
  if (!given) return;
  step->process_count = 0;
  step->processes = NULL;
  char *copy = strdup(given), *rest = copy, *one;
  while ((one = strsep(&rest, ",")))
    if (*one) {
      struct process *process = GROW(step->processes, step->process_count);
      memset(process, 0, sizeof *process);
      sscanf(one, "%u:%llu:%lf", &process->pid, &process->memory, &process->sm);
    }
  free(copy);
}

static void read_line(struct scenario *s, char *line) {
  char *whole_line = strdup(line), *fields[KEY_COUNT + 40], *rest = line, *kind = strsep(&rest, "\t");
  int count = 0;
  while (rest && count < KEY_COUNT + 40) fields[count++] = strsep(&rest, "\t");
  int index = (int)number(fields, count, "gpu", -1);
  double from = number(fields, count, "from", 0), until = number(fields, count, "until", FOREVER);
  if (!strcmp(kind, "driver")) {
    text(fields, count, "version", "", s->driver);
    s->cuda = (int)whole(fields, count, "cuda", 13000);
    s->sample_s = number(fields, count, "sample_s", 0.1);
  } else if (!strcmp(kind, "gpu")) {
    if (s->gpu_count == MAX_GPUS) refuse("too many GPUs", whole_line);
    struct gpu *gpu = GROW(s->gpus, s->gpu_count);
    memset(gpu, 0, sizeof *gpu);
    text(fields, count, "uuid", "", gpu->uuid);
    text(fields, count, "name", "", gpu->name);
    text(fields, count, "bus", "00000000:00:00.0", gpu->bus);
    sscanf(field(fields, count, "cc", "9.0"), "%d.%d", &gpu->cc_major, &gpu->cc_minor);
    gpu->memory = whole(fields, count, "memory", 0);
    gpu->reserved = whole(fields, count, "reserved", 0);
    gpu->gpm = (int)whole(fields, count, "gpm", 1);
    gpu->energy = (int)whole(fields, count, "energy", 1);
    gpu->memory_v2 = (int)whole(fields, count, "memory_v2", 1);
    gpu->nvlink5 = (int)whole(fields, count, "nvlink5", 0);
    gpu->mig_mode = (int)number(fields, count, "mig", -1);
    gpu->mig_slices = whole(fields, count, "mig_slices", MAX_MIG - 1);
    gpu->from = from;
    gpu->until = until;
    gpu->energy_since = number(fields, count, "energy_since", 0);
    gpu->energy_offset_mj = number(fields, count, "energy_offset_mj", 0);
    gpu->energy_tick_s = number(fields, count, "energy_tick_s", 0);
    fill_step(add_step(&gpu->steps, -FOREVER), fields, count);
  } else if (!strcmp(kind, "mig")) {
    if (index < 0 || index >= s->gpu_count || s->gpus[index].mig_count == MAX_MIG) refuse("a wrong gpu", whole_line);
    struct mig *mig = &s->gpus[index].mig[s->gpus[index].mig_count++];
    text(fields, count, "uuid", "", mig->uuid);
    text(fields, count, "name", "", mig->name);
    mig->gi = whole(fields, count, "gi", 1);
    mig->ci = whole(fields, count, "ci", 0);
    mig->slices = whole(fields, count, "slices", 1);
    mig->ci_slices = whole(fields, count, "ci_slices", mig->slices);
    mig->memory = whole(fields, count, "memory", 0);
    mig->from = from;
    mig->until = until;
    fill_step(add_step(&mig->steps, -FOREVER), fields, count);
  } else if (!strcmp(kind, "step")) {
    int mig = (int)number(fields, count, "mig", -1);
    if (index < 0 || index >= s->gpu_count || mig >= s->gpus[index].mig_count) refuse("a wrong gpu", whole_line);
    struct steps *steps = mig < 0 ? &s->gpus[index].steps : &s->gpus[index].mig[mig].steps;
    double at = number(fields, count, "at", 0);
    if (steps->list[steps->count - 1].at > at) refuse("steps out of order", whole_line);
    fill_step(add_step(steps, at), fields, count);
  } else if (!strcmp(kind, "fault")) {
    struct fault *fault = GROW(s->faults, s->fault_count);
    const char *action = field(fields, count, "do", "code");
    text(fields, count, "call", "*", fault->call);
    fault->gpu = index;
    fault->field = (int)number(fields, count, "field", -1);
    fault->code = (int)whole(fields, count, "code", 999);
    fault->action = !strcmp(action, "hang") ? HANG : !strcmp(action, "segv") ? SEGV : !strcmp(action, "exit") ? EXIT : GIVE_CODE;
    fault->from = from;
    fault->until = until;
  } else if (!strcmp(kind, "xid")) {
    struct xid *xid = GROW(s->xids, s->xid_count);
    *xid = (struct xid){index, number(fields, count, "at", 0), whole(fields, count, "code", 0), whole(fields, count, "type", 8)};
  } else if (!strcmp(kind, "latency")) {
    struct latency *latency = GROW(s->latencies, s->latency_count);
    text(fields, count, "call", "*", latency->call);
    latency->us = (int)whole(fields, count, "us", 0);
    latency->field = (int)number(fields, count, "field", -1);
    latency->busy = (int)number(fields, count, "busy", 0);
  } else if (!strcmp(kind, "restart")) {
    struct restart *restart = GROW(s->restarts, s->restart_count);
    *restart = (struct restart){number(fields, count, "at", 0), number(fields, count, "down", 0)};
  } else if (*kind && *kind != '#') {
    refuse("an unknown record", whole_line);
  }
  free(whole_line);
}

static struct scenario *read_file(const char *path) {
  struct scenario *s = calloc(1, sizeof *s);
  s->sample_s = 0.1;
  s->cuda = 13000;
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) return s;
  char *line = NULL;
  size_t room = 0;
  while (getline(&line, &room, file) > 0) {
    line[strcspn(line, "\n")] = 0;
    read_line(s, line);
  }
  free(line);
  fclose(file);
  return s;
}

static const char *scenario_path(void) {
  static char beside[4096];
  const char *given = getenv("STOKER_FAKE_NVML");
  Dl_info info;
  if (given) return given;
  if (!*beside && dladdr((void *)scenario_path, &info) && info.dli_fname && strlen(info.dli_fname) < sizeof beside - 16) {
    strcpy(beside, info.dli_fname);
    char *slash = strrchr(beside, '/');
    strcpy(slash ? slash + 1 : beside, "scenario.txt");
  }
  return beside;
}

/* An old scenario is never freed: another thread may still answer from it. */
const struct scenario *scenario_now(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct scenario *newest;
  static struct stat seen;
  const char *path = scenario_path();
  struct stat stat_now;
  memset(&stat_now, 0, sizeof stat_now);
  if (path) stat(path, &stat_now);
  pthread_mutex_lock(&lock);
  if (!newest || stat_now.st_ino != seen.st_ino || stat_now.st_mtim.tv_sec != seen.st_mtim.tv_sec ||
      stat_now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec || stat_now.st_size != seen.st_size) {
    newest = read_file(path);
    seen = stat_now;
  }
  const struct scenario *answer = newest;
  pthread_mutex_unlock(&lock);
  return answer;
}

const struct step *step_at(const struct steps *steps, double at) {
  int i = steps->count - 1;
  while (i > 0 && steps->list[i].at > at) i--;
  return &steps->list[i];
}

double value_at(const struct steps *steps, enum key key, double at) { return step_at(steps, at)->v[key]; }

double integral(const struct steps *steps, enum key key, double from, double until) {
  if (isnan(value_at(steps, key, until))) return NAN;
  double sum = 0;
  for (int i = 0; i < steps->count; i++) {
    double begin = fmax(steps->list[i].at, from);
    double end = i + 1 < steps->count ? fmin(steps->list[i + 1].at, until) : until;
    if (end > begin && !isnan(steps->list[i].v[key])) sum += steps->list[i].v[key] * (end - begin);
  }
  return sum;
}

double seconds_with_reason(const struct steps *steps, unsigned long long mask, double from, double until) {
  double sum = 0;
  for (int i = 0; i < steps->count; i++) {
    double begin = fmax(steps->list[i].at, from), reasons = steps->list[i].v[K_reasons];
    double end = i + 1 < steps->count ? fmin(steps->list[i + 1].at, until) : until;
    if (end > begin && !isnan(reasons) && ((unsigned long long)reasons & mask) == mask) sum += end - begin;
  }
  return sum;
}

double counters_since(const struct scenario *s, const struct gpu *gpu, double now) {
  double since = gpu->energy_since;
  for (int i = 0; i < s->restart_count; i++) {
    double end = s->restarts[i].at + s->restarts[i].down;
    if (end <= now && end > since) since = end;
  }
  return since;
}
