/* A wall clock that a test moves: preloaded into a process, it adds the nanoseconds in the file $DRAGOMAN_CLOCK to what
   the clock says. The monotonic clock is left alone, as by a user or a time server that sets the clock of a machine. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset; /* shared with the test */

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("DRAGOMAN_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    offset = found == MAP_FAILED ? NULL : found;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t moved = time->tv_sec * INT64_C(1000000000) + time->tv_nsec + *offset;
        time->tv_sec = moved / 1000000000;
        time->tv_nsec = moved % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
