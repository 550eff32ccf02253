/* What two processes can do with nothing but a ring of slots in shared memory: no posting, no checks, no waking.
 *
 *   raw_ring BYTES ROUNDS     prints the median half round trip in nanoseconds
 *
 * Each message is copied in and out, as by the provider it is held against. The two run on processors 0 and 1. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, HEADER = 16, BATCH = 10, SIDE = 1 << 24 };

static size_t stride, len;
static char buffer[1 << 17];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void stay_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void put(char *ring, long n) {
    char *slot = ring + (size_t)(n % SLOTS) * stride;
    memcpy(slot + HEADER, buffer, len);
    atomic_store_explicit((_Atomic long *)(void *)slot, n, memory_order_release);
}

static void take(char *ring, long n) {
    char *slot = ring + (size_t)(n % SLOTS) * stride;
    while (atomic_load_explicit((_Atomic long *)(void *)slot, memory_order_acquire) != n)
        __builtin_ia32_pause();
    memcpy(buffer, slot + HEADER, len);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    len = (size_t)atol(words[1]);
    long rounds = atol(words[2]), warm = rounds / 10 + 1;
    stride = ((HEADER + len + 127) / 128 | 1) * 128;
    if (stride * SLOTS > SIDE || rounds < 1)
        return 2;
    char *memory = mmap(0, 2 * (size_t)SIDE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *times = malloc((size_t)(rounds + warm) * sizeof *times);
    if (memory == MAP_FAILED || !times)
        return 1;
    char *there = memory, *back = memory + SIDE;
    pid_t child = fork();
    if (child == 0) {
        stay_on(1);
        for (long n = 1; n <= (rounds + warm) * BATCH; n++) {
            take(there, n);
            put(back, n);
        }
        _exit(0);
    }
    stay_on(0);
    long n = 1;
    for (long i = 0; i < rounds + warm; i++) {
        double start = now();
        for (int j = 0; j < BATCH; j++, n++) {
            put(there, n);
            take(back, n);
        }
        times[i] = (now() - start) / BATCH / 2;
    }
    waitpid(child, 0, 0);
    qsort(times + warm, (size_t)rounds, sizeof *times, compare);
    printf("%.1f\n", times[warm + rounds / 2]);
    return 0;
}
