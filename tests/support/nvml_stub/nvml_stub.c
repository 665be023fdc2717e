/* A libnvidia-ml.so.1 that answers from a script, so that tests exercise the real pynvml.
 *
 * RIGCANARY_NVML_STUB names the script. It is read again whenever it changes. Lines:
 *
 *   driver 570.1            the loaded kernel module's version; the library keeps the one it was
 *                           loaded under, and nvmlInit fails with code 18 when they differ
 *   init 9                  nvmlInit answers this error code
 *   count 2                 cards that are enumerated
 *   0.uuid GPU-a            a field of card 0
 *   0.fan !3                this field answers error code 3
 *   1.* !15                 every field without a line of its own answers it
 *   0.power sleep           this field's call does not return for an hour
 *   0.samples 100 101 102   power samples, 20 ms apart, each call one batch further on
 *
 * A field without a line is not supported (3). A handle belongs to a uuid, whatever its index.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, MISMATCH = 18,
       LOST = 15, LINES = 512, TEXT = 512, HANDLES = 64 };

typedef struct { char key[64]; char text[TEXT]; } line_t;
typedef struct { char uuid[96]; unsigned long long microseconds; } handle_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static line_t lines[LINES];
static int line_count;
static struct timespec read_at;
static off_t read_size;
static char library_version[96];
static int ready;
static handle_t handles[HANDLES];
static int handle_count;

static void refresh(void) {
    const char *path = getenv("RIGCANARY_NVML_STUB");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) { line_count = 0; return; }
    if (now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec &&
        now.st_size == read_size && line_count > 0) return;
    read_at = now.st_mtim;
    read_size = now.st_size;
    line_count = 0;
    FILE *file = fopen(path, "r");
    char row[TEXT];
    while (file != NULL && line_count < LINES && fgets(row, sizeof row, file) != NULL) {
        line_t *line = &lines[line_count];
        row[strcspn(row, "\n")] = 0;
        if (sscanf(row, "%63s", line->key) != 1) continue;
        const char *rest = strchr(row, ' ');
        snprintf(line->text, sizeof line->text, "%s", rest == NULL ? "" : rest + 1);
        line_count++;
    }
    if (file != NULL) fclose(file);
}

static const char *find(const char *key) {
    for (int i = 0; i < line_count; i++)
        if (strcmp(lines[i].key, key) == 0) return lines[i].text;
    return NULL;
}

static int number(const char *key, int otherwise) {
    const char *text = find(key);
    return text == NULL ? otherwise : atoi(text);
}

__attribute__((constructor)) static void loaded(void) {
    refresh();
    const char *driver = find("driver");
    snprintf(library_version, sizeof library_version, "%s", driver == NULL ? "570.1" : driver);
}

/* The text of a field into out, or its error code. Sleeps outside of the lock. */
static int answer(void *device, const char *field, char *out) {
    char key[96];
    int code = OK, asleep = 0;
    pthread_mutex_lock(&lock);
    refresh();
    handle_t *handle = device;
    int count = number("count", 0), index = -1;
    for (int i = 0; i < count && index < 0; i++) {
        snprintf(key, sizeof key, "%d.uuid", i);
        const char *uuid = find(key);
        if (uuid != NULL && handle != NULL && strcmp(uuid, handle->uuid) == 0) index = i;
    }
    if (!ready) code = UNINITIALIZED;
    else if (handle == NULL) code = INVALID;
    else if (index < 0) code = LOST;
    else {
        snprintf(key, sizeof key, "%d.%s", index, field);
        const char *text = find(key);
        if (text == NULL) {
            snprintf(key, sizeof key, "%d.*", index);
            text = find(key);
        }
        if (text == NULL) code = NOT_SUPPORTED;
        else if (text[0] == '!') code = atoi(text + 1);
        else if (strcmp(text, "sleep") == 0) asleep = 1;
        else snprintf(out, TEXT, "%s", text);
    }
    pthread_mutex_unlock(&lock);
    if (asleep) { sleep(3600); return 10; }
    return code;
}

static int answer_uint(void *device, const char *field, unsigned *out) {
    char text[TEXT];
    int code = answer(device, field, text);
    if (code == OK) *out = (unsigned)strtoull(text, NULL, 0);
    return code;
}

static int answer_text(void *device, const char *field, char *out, unsigned size) {
    char text[TEXT];
    int code = answer(device, field, text);
    if (code == OK) snprintf(out, size, "%s", text);
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    const char *driver = find("driver");
    const char *init = find("init");
    int asleep = init != NULL && strcmp(init, "sleep") == 0;
    int code = asleep ? OK : number("init", 0);
    if (code == OK && driver != NULL && strcmp(driver, library_version) != 0) code = MISMATCH;
    if (code == OK && !asleep) ready = 1;
    pthread_mutex_unlock(&lock);
    if (asleep) sleep(3600);
    return code;
}
int nvmlShutdown(void) { ready = 0; return OK; }

const char *nvmlErrorString(int code) {
    static char text[64];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    pthread_mutex_lock(&lock);
    refresh();
    const char *driver = find("driver");
    snprintf(out, size, "%s", driver == NULL ? "570.1" : driver);
    pthread_mutex_unlock(&lock);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    pthread_mutex_lock(&lock);
    refresh();
    const char *driver = find("driver");
    int code = !ready ? UNINITIALIZED : number("init", 0);
    if (code == OK && driver != NULL && strcmp(driver, library_version) != 0) code = MISMATCH;
    *out = (unsigned)number("count", 0);
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    char key[64];
    int code = OK;
    pthread_mutex_lock(&lock);
    refresh();
    snprintf(key, sizeof key, "%u.handle", index);
    const char *text = find(key);
    snprintf(key, sizeof key, "%u.uuid", index);
    const char *uuid = find(key);
    if (text != NULL && text[0] == '!') code = atoi(text + 1);
    else if (uuid == NULL || uuid[0] == '!') code = INVALID;
    else {
        int i = 0;
        while (i < handle_count && strcmp(handles[i].uuid, uuid) != 0) i++;
        if (i == handle_count && handle_count < HANDLES) {
            snprintf(handles[i].uuid, sizeof handles[i].uuid, "%s", uuid);
            handle_count++;
        }
        *out = &handles[i];
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return answer_text(d, "uuid", out, size); }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return answer_text(d, "name", out, size); }

#define UINT_CALL(function, field) \
    int function(void *d, unsigned *out) { return answer_uint(d, field, out); }
UINT_CALL(nvmlDeviceGetFanSpeed, "fan")
UINT_CALL(nvmlDeviceGetPowerUsage, "power")
UINT_CALL(nvmlDeviceGetCurrPcieLinkWidth, "width")
UINT_CALL(nvmlDeviceGetMaxPcieLinkWidth, "width_max")
UINT_CALL(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
UINT_CALL(nvmlDeviceGetMaxPcieLinkGeneration, "generation_max")
UINT_CALL(nvmlDeviceGetPcieReplayCounter, "replay")
UINT_CALL(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")

int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) {
    (void)sensor;
    return answer_uint(d, "temperature", out);
}

int nvmlDeviceGetFanSpeedRPM(void *d, unsigned *info) { return answer_uint(d, "rpm", &info[2]); }

int nvmlDeviceGetClockInfo(void *d, int kind, unsigned *out) {
    return answer_uint(d, kind == 1 ? "sm_clock" : "memory_clock", out);
}

int nvmlDeviceGetUtilizationRates(void *d, unsigned *out) {
    out[1] = 0;
    return answer_uint(d, "utilization", out);
}

static int answer_ulong(void *device, const char *field, unsigned long long *out) {
    char text[TEXT];
    int code = answer(device, field, text);
    if (code == OK) *out = strtoull(text, NULL, 0);
    return code;
}

int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *out) {
    char field[32];
    snprintf(field, sizeof field, "ecc_%s%s", kind == 0 ? "corrected" : "uncorrected",
             counter == 0 ? "" : "_aggregate");
    return answer_ulong(d, field, out);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *out) {
    return answer_ulong(d, "throttle", out);
}

int nvmlDeviceGetRetiredPages(void *d, int cause, unsigned *count, unsigned long long *pages) {
    unsigned have = 0, room = *count;
    int code = answer_uint(d, cause == 0 ? "retired_corrected" : "retired_uncorrected", &have);
    if (code != OK) return code;
    *count = have;
    if (pages == NULL) return have > 0 ? TOO_SMALL : OK;
    for (unsigned i = 0; i < have && i < room; i++) pages[i] = 4096ull * i;
    return OK;
}

int nvmlDeviceGetRemappedRows(void *d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    char text[TEXT];
    int code = answer(d, "remapped", text);
    if (code == OK && sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed) != 4)
        code = INVALID;
    return code;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int kind, code;
    union { unsigned u; unsigned long long ull; double d; } value;
} field_value_t;

int nvmlDeviceGetFieldValues(void *d, int count, field_value_t *values) {
    for (int i = 0; i < count; i++) {
        values[i].kind = 1;
        values[i].code = values[i].field == 82 ? answer_uint(d, "memory", &values[i].value.u)
                                               : NOT_SUPPORTED;
    }
    return OK;
}

typedef struct {
    unsigned long long timestamp;
    union { unsigned u; unsigned long long ull; double d; } value;
} sample_t;

int nvmlDeviceGetSamples(void *d, int kind, unsigned long long seen, int *value_kind,
                         unsigned *count, sample_t *samples) {
    char text[TEXT];
    (void)kind;
    (void)seen;
    int code = answer(d, "samples", text);
    if (code != OK) return code;
    *value_kind = 1;
    if (samples == NULL) { *count = TEXT; return OK; }
    handle_t *handle = d;
    char *state = NULL;
    unsigned n = 0;
    for (char *word = strtok_r(text, " ", &state); word != NULL; word = strtok_r(NULL, " ", &state)) {
        handle->microseconds += 20000;
        samples[n].timestamp = handle->microseconds;
        samples[n++].value.u = (unsigned)strtoul(word, NULL, 0);
    }
    *count = n;
    return OK;
}
