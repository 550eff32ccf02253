/* A thread that does something to a connection over and over, while this one forks. */
#include "behaviour.h"

static struct ends e;
static volatile int over;
static volatile long strange, cycles;

/* A new connection, and a thread that has begun with it. */
static inline pthread_t set_off(void *(*acts)(void *)) {
    pthread_t t;
    e = ends();
    over = 0;
    long before = cycles;
    pthread_create(&t, NULL, acts, NULL);
    while (cycles == before) usleep(100);
    return t;
}

static inline void call_off(pthread_t t) {
    over = 1;
    pthread_join(t, NULL);
}

/* Forks beside the thread, again and again; prints how often it found a value that it had not set. */
static inline void beside_forks(void *(*acts)(void *), int rounds) {
    for (int i = 0; i < rounds; i++) {
        pthread_t t = set_off(acts);
        pid_t pid = MUST(fork());
        if (pid == 0) _exit(0);
        MUST(waitpid(pid, NULL, 0));
        call_off(t);
        close(e.client), close(e.server);
    }
    say("strange %ld", strange);
}
