/* A signal handler closes, dups and replaces sockets, wherever it interrupts the program; the numbers are free then. */
#include "behaviour.h"

enum { ROUNDS = 300 };
static struct ends steady, doomed;
static volatile sig_atomic_t way, acted, strange;
static int copy, null;
static void acts(int sig) {
    int error = errno;
    switch (way) {
    case 1: strange += close(doomed.client) != 0; break;
    case 2: strange += dup2(null, doomed.client) != doomed.client; break;
    case 3: strange += dup2(doomed.client, copy) != copy || close(doomed.client) != 0; break;
    }
    acted += way != 0;
    way = 0;
    errno = error;
}
/* Works on the other connection until the handler has acted. */
static void work(void) {
    char b[64] = "abc", c[64];
    while (!acted) {
        while (write(steady.client, b, sizeof b) == -1) {}
        poll((struct pollfd[]){{.fd = steady.server, .events = POLLIN}}, 1, 1000);
        for (long n, got = 0; got < (long)sizeof c; got += n > 0 ? n : 0) n = read(steady.server, c, sizeof c - got);
    }
}
int main(void) {
    int s = listener(), file = MUST(open("file", O_RDWR | O_CREAT, 0600)), ends_seen = 0, files_read = 0;
    null = MUST(open("/dev/null", O_RDONLY));
    MUST(write(file, "file", 4));
    steady = ends_at(s);
    signal(SIGUSR1, acts);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    double since = seconds();
    int i = 0;
    for (; i < ROUNDS && seconds() - since < 8; i++) {
        char b[8] = {0};
        doomed = ends_at(s);
        copy = MUST(dup(null));
        acted = 0;
        way = i % 3 + 1;
        /* Each comes at a place of its own. */
        struct itimerspec once = {.it_value.tv_nsec = 1000 + 997 * i % 100000};
        MUST(timer_settime(timer, 0, &once, NULL));
        work();
        /* What the handler left open is as a file's or the connection's. */
        if (i % 3 == 1) strange += read(doomed.client, b, 4) != 0;
        if (i % 3 == 2) strange += write(copy, "x", 1) != 1 || read(doomed.server, b, 1) != 1;
        if (i % 3 == 1) MUST(close(doomed.client));
        MUST(close(copy));
        ends_seen += read(doomed.server, b, 1) == 0;
        int again = MUST(open("file", O_RDONLY));
        strange += again > doomed.client;
        files_read += read(again, b, 4) == 4 && memcmp(b, "file", 4) == 0;
        MUST(close(again));
        MUST(close(doomed.server));
    }
    say("ends missed %d, files missed %d, strange %d, rounds: %s", i - ends_seen, i - files_read, (int)strange, i < 9 ? "few" : "enough");
}
