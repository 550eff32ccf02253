/* A handler with SA_RESTART lets read and accept go on; poll it interrupts all the same. */
#include "behaviour.h"

static volatile int seen;
static struct ends e;
static int s;
static pthread_t waiter;
static void count(int sig) { seen++; }
static void *acts(void *what) {
    await_thread_asleep();
    pthread_kill(waiter, SIGUSR1);
    while (!seen) sched_yield();
    await_thread_asleep();
    if ((long)what == 0) send(e.client, "x", 1, 0);
    if ((long)what == 1) dial(s);
    return NULL;
}
int main(void) {
    s = listener();
    e = ends_at(s);
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    waiter = pthread_self();
    pthread_t t;
    char b[4];
    this_thread();
    pthread_create(&t, NULL, acts, (void *)0);
    TRY(read(e.server, b, 4));
    pthread_join(t, NULL);
    seen = 0;
    pthread_create(&t, NULL, acts, (void *)1);
    TRY(accept(s, NULL, NULL) >= 0);
    pthread_join(t, NULL);
    seen = 0;
    pthread_create(&t, NULL, acts, (void *)2);
    struct pollfd p = {e.server, POLLIN};
    TRY(poll(&p, 1, -1));
    pthread_join(t, NULL);
    /* With a time-out of the socket's it is never restarted. */
    struct timeval time = {10, 0};
    MUST(setsockopt(e.server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    seen = 0;
    pthread_create(&t, NULL, acts, (void *)2);
    TRY(read(e.server, b, 4));
    pthread_join(t, NULL);
}
