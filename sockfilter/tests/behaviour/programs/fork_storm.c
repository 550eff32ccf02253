/* Threads talk over connections while the process forks and forks; each child makes a connection of its own. */
#include "behaviour.h"

enum { THREADS = 4, FORKS = 120 };
static int s;
static volatile int over;
static long rounds[THREADS];
static struct ends pairs[THREADS];

/* One message there and back again; whether it came. */
static int exchange(struct ends e, long n) {
    char b[32] = {0}, c[32] = {0};
    snprintf(b, sizeof b, "message %ld", n);
    if (send(e.client, b, sizeof b, 0) != sizeof b || recv(e.server, c, sizeof c, MSG_WAITALL) != sizeof c) return 0;
    if (send(e.server, c, sizeof c, 0) != sizeof c) return 0;
    memset(c, 0, sizeof c);
    return recv(e.client, c, sizeof c, MSG_WAITALL) == sizeof c && memcmp(b, c, sizeof c) == 0;
}
static void *talks(void *argument) {
    long at = (long)argument;
    while (!over && exchange(pairs[at], rounds[at])) rounds[at]++;
    return NULL;
}
static void child(void) {
    int own = listener();
    _exit(exchange(ends_at(own), 7) ? 0 : 1);
}
int main(void) {
    pthread_t threads[THREADS];
    s = listener();
    for (long i = 0; i < THREADS; i++) {
        pairs[i] = ends_at(s);
        pthread_create(&threads[i], NULL, talks, (void *)i);
    }
    double since = seconds();
    int good = 0, alive = 0;
    for (int i = 0; i < FORKS; i++) {
        long before = rounds[i % THREADS];
        pid_t pid = MUST(fork());
        if (pid == 0) child();
        int status = -1;
        if (i % 2) MUST(waitpid(pid, &status, 0)), good += status == 0;
        /* The threads get on, whatever the process does. (A loop of sched_yield can starve its caller for ever: kernels
           with EEVDF put the deadline of a caller off at each call.) */
        while (i % 10 == 0 && rounds[i % THREADS] == before) usleep(100);
    }
    for (int status; waitpid(-1, &status, 0) > 0;) good += status == 0;
    over = 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        alive += exchange(pairs[i], i);
    }
    say("children %d, connections %d, %s", good, alive, seconds() - since < 60 ? "in time" : "late");
}
