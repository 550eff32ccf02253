/* A thread that interrupts this one with SIGUSR1 once it is asleep. */
#include "behaviour.h"

static volatile int seen;
static void count(int s) { seen++; }
static pthread_t waiter;
static void *signals(void *unused) {
    await_thread_asleep();
    pthread_kill(waiter, SIGUSR1);
    return NULL;
}
static void start(pthread_t *t) {
    registered_thread = 0;
    this_thread();
    pthread_create(t, NULL, signals, NULL);
}
